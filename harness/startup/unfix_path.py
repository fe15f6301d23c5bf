"""Copied as text into the path file of a release: chooses a checkout, and starts its toggles.

Runs in each Python process of a release, before the program: the checkout's `harness` and its
stand-ins go last on the path. Python ignores an error in a path file, but a process whose
environment requests toggles must not run without them: any error ends that process.
"""

import os
import sys

toggles_requested = os.environ.get("SGLANG_DEBUG_REVERT_PR") or os.environ.get(
    "SGLANG_DEBUG_ENABLE_PR"
)
try:
    releases_folder = os.path.dirname(sys.prefix)
    chosen_harness = os.environ.get("UNFIX_HARNESS")
    registered_checkouts = []
    if os.path.isdir(os.path.join(releases_folder, "engines")):
        registered_checkouts = [
            entry
            for entry in os.scandir(os.path.join(releases_folder, "engines"))
            if entry.is_dir()
        ]
    registered_checkouts.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in registered_checkouts:
        harness_folder = os.path.realpath(os.path.join(entry.path, "harness"))
        is_harness = os.path.isfile(os.path.join(harness_folder, "__init__.py"))
        if is_harness and harness_folder == (chosen_harness or harness_folder):
            sys.path += [entry.path, os.path.join(harness_folder, "releases", "standins")]
            if sys.prefix.endswith("-cuda"):
                sys.path.append(os.path.join(harness_folder, "releases", "standins_cuda"))
            break
    else:
        if toggles_requested:
            problem = f"{chosen_harness} is not" if chosen_harness else "no checkout is"
            sys.exit(
                f"{problem} registered in {releases_folder}; `./unfix releases add VERSION` in a "
                "checkout of unfix registers it"
            )
    if toggles_requested:
        os.environ["UNFIX_HARNESS"] = harness_folder
        os.environ.setdefault("UNFIX_HOME", os.path.dirname(releases_folder))
        with open(os.path.join(entry.path, "planner")) as file:
            os.environ.setdefault("UNFIX_PLANNER", file.read())
        import unfix_start  # type: ignore[import-not-found] # noqa: F401
except BaseException as error:
    if not toggles_requested:
        raise
    reason = error if isinstance(error, SystemExit) else repr(error)
    sys.stderr.write(f"unfix: toggles cannot be applied: {reason}\n")
    sys.stderr.flush()
    os._exit(3)
