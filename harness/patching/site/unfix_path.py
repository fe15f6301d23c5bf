"""Laid as text into the path file of an environment: whose engine, and toggles if asked for.

Runs in each Python process of a release, before the program: `harness` and the stand-ins of the
engine go last on the path. Python goes on after an error in a path file, and a process that was
asked for a fault must not go on without it: any error ends that process.
"""

import os
import sys

asked = os.environ.get("SGLANG_DEBUG_REVERT_PR") or os.environ.get("SGLANG_DEBUG_ENABLE_PR")
try:
    home = os.path.dirname(sys.prefix)
    named = os.environ.get("UNFIX_HARNESS")
    known = []
    if os.path.isdir(os.path.join(home, "engines")):
        known = [entry for entry in os.scandir(os.path.join(home, "engines")) if entry.is_dir()]
    known.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in known:
        engine = os.path.realpath(os.path.join(entry.path, "harness"))
        there = os.path.isfile(os.path.join(engine, "__init__.py"))
        if there and engine == (named or engine):
            sys.path += [entry.path, os.path.join(engine, "releases", "standins")]
            if sys.prefix.endswith("-cuda"):
                sys.path.append(os.path.join(engine, "releases", "standins_cuda"))
            break
    else:
        if asked:
            which = f"{named} is no engine that is" if named else "no engine is left of those"
            sys.exit(
                f"{which} known in {home}; `./unfix releases add VERSION` in a checkout of unfix "
                "makes its own known"
            )
    if asked:
        os.environ["UNFIX_HARNESS"] = engine
        os.environ.setdefault("UNFIX_HOME", os.path.dirname(home))
        with open(os.path.join(entry.path, "planner")) as file:
            os.environ.setdefault("UNFIX_PLANNER", file.read())
        import unfix_start  # type: ignore[import-not-found] # noqa: F401
except BaseException as error:
    if not asked:
        raise
    why = error if isinstance(error, SystemExit) else repr(error)
    sys.stderr.write(f"unfix: toggles cannot be applied: {why}\n")
    sys.stderr.flush()
    os._exit(3)
