"""Toggles through the environment: what a Python process does when one of the variables is set.

Runs before the program, from a `.pth` line of a managed release or from the `sitecustomize` that
`unfix exec` puts on the path. It only sets up a finder: a process that never imports SGLang is
left alone. The plan is made in unfix's own environment and kept, so that of a server's many
processes one pays for it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from harness import paths
from harness.patching.attestation import Recorder
from harness.patching.importing import PACKAGE, Patched, PatchingFinder

REVERT = "SGLANG_DEBUG_REVERT_PR"
ENABLE = "SGLANG_DEBUG_ENABLE_PR"
# SGLang reads its own variable as one integer, so what is ours travels on in another, as
# 'what was left there|ours'. A child that sets the variable anew means what it says.
CARRIED = "UNFIX_REVERT"
FOLDERS = "UNFIX_TOGGLES"
ATTESTATIONS = "UNFIX_ATTESTATIONS"
PLANNER = "UNFIX_PLANNER"
PLANNER_PATH = "UNFIX_PLANNER_PATH"

recorder: Recorder | None = None


def split(text: str) -> list[str]:
    """The ids in a list; SGLang's own default, 0, asks for nothing."""
    listed = [word.strip().lstrip("#") for word in text.split(",")]
    return [word for word in listed if word and word != "0"]


def asked_for() -> tuple[list[str], list[str]]:
    """What the environment wants reverted and enabled."""
    own = os.environ.get(REVERT, "")
    left, _, carried = os.environ.get(CARRIED, "").partition("|")
    revert = split(own) + (split(carried) if REVERT in os.environ and own == left else [])
    return list(dict.fromkeys(revert)), split(os.environ.get(ENABLE, ""))


def folders(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Toggle folders beside the project's own."""
    return [folder for folder in environment.get(FOLDERS, "").split(os.pathsep) if folder]


def install() -> None:
    """Have toggles applied to whatever this process imports of SGLang."""
    if any(isinstance(finder, PatchingFinder) for finder in sys.meta_path):
        return
    revert, enable = asked_for()
    if revert or enable:
        if PACKAGE in sys.modules:
            stop(f"{PACKAGE} was imported before its toggles could be applied")
        sys.meta_path.insert(0, PatchingFinder(lambda p: _arm(p, revert, enable), stop))


def stop(message: str, code: int = 3) -> NoReturn:
    """End the process before it serves anything, also when a thread was the one to import."""
    say(message)
    if sys.is_finalizing():
        os._exit(code)
    if threading.current_thread() is not threading.main_thread():
        os._exit(code)
    raise SystemExit(code)


def say(message: str) -> None:
    """A line on stderr; a reader that went away is no reason to end, nor to run unpatched."""
    try:
        print(f"unfix: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _arm(package: str, revert: list[str], enable: list[str]) -> tuple[list[Patched], Recorder]:
    try:
        return _armed(package, revert, enable)
    except Exception as error:
        stop(f"toggles cannot be applied: {error!r}")


def _armed(package: str, revert: list[str], enable: list[str]) -> tuple[list[Patched], Recorder]:
    global recorder
    request = {"root": str(Path(package).parent), "revert": revert, "enable": enable}
    answer = plan({**request, "folders": folders()}, _ask_planner)
    if "error" in answer:
        stop(answer["error"], answer["exit_code"])
    chosen = answer["plan"]
    folder = Path(os.environ.get(ATTESTATIONS) or paths.state() / "attestations" / "loose")
    try:
        recorder = Recorder(folder)
        toggles = [{"id": i, "direction": d, "title": t} for i, d, t in chosen["toggles"]]
        if toggles:
            recorder.applied(chosen["release"], toggles)
    except OSError as error:
        stop(f"no attestation can be left in {folder} ({error}), so no toggle is applied")
    for toggle in toggles:
        verb = "REVERTED" if toggle["direction"] == "revert" else "ENABLED"
        say(
            f"pid {os.getpid()} runs SGLang {chosen['release']} with {verb} "
            f"{toggle['id']}: {toggle['title']}"
        )
    _leave_the_rest_to_upstream(answer)
    if sys.excepthook is sys.__excepthook__:
        # Python's own prints the lines of the file; this one those that ran.
        sys.excepthook = traceback.print_exception
    return [Patched.from_data(module) for module in chosen["modules"]], recorder


def _leave_the_rest_to_upstream(answer: dict[str, Any]) -> None:
    if REVERT in os.environ:
        os.environ[REVERT] = left = answer["upstream"] or "0"
        os.environ[CARRIED] = f"{left}|{','.join(answer['ours'])}"


def plan(
    request: dict[str, Any], ask: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The planner's answer for a release and its toggles, from the last time or afresh."""
    kept = paths.state() / "plans" / f"{_key(request)}.json"
    try:
        answer: dict[str, Any] = json.loads(kept.read_text())
        if all(_signature(Path(m["path"])) == m["signature"] for m in answer["read"]):
            return answer
    except (OSError, ValueError, KeyError):
        answer = {}  # not kept yet, or cut short: it is made again
    answer = ask(request)
    if "error" not in answer:
        for module in answer["read"]:
            module["signature"] = _signature(Path(module["path"]))
        _keep(kept, answer)
    return answer


def _ask_planner(request: dict[str, Any]) -> dict[str, Any]:
    python = os.environ.get(PLANNER) or sys.executable
    ours = (REVERT, ENABLE, CARRIED, "PYTHONPATH", "PYTHONHOME")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    found_by = [str(paths.PACKAGE.parent), os.environ.get(PLANNER_PATH, "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, found_by))
    try:
        done = subprocess.run(
            [python, "-P", "-m", "harness.patching.planner"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    except (OSError, subprocess.TimeoutExpired) as error:
        stop(f"the planner does not run under {python} ({error}): run ./unfix doctor")
    except ValueError:
        stop(f"the planner failed under {python}: {done.stderr.strip()[-2000:]}")


def _key(request: dict[str, Any]) -> str:
    """A name for a plan: what was asked, the toggle files and the engine that read them."""
    seen = [json.dumps(request, sort_keys=True)]
    for folder in [paths.toggles(), *map(Path, request["folders"])]:
        seen += [f"{p} {p.read_bytes()!r}" for p in sorted(folder.glob("*.yaml"))]
    seen += engine()
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:24]


@functools.cache
def engine() -> list[str]:
    """The code that makes plans, as it was when it was first asked for."""
    packages = ("registry", "matching", "patching", "releases")
    files = (file for name in packages for file in sorted((paths.PACKAGE / name).glob("*.py")))
    return [str(_signature(file)) for file in files]


def _signature(path: Path) -> list[Any]:
    found = path.stat()
    return [str(path), found.st_size, found.st_mtime_ns, found.st_ino]


def _keep(path: Path, answer: dict[str, Any]) -> None:
    """Keeping the plan only saves time: a disk that does not take it is not an error."""
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(answer))
        os.replace(temporary, path)
    except OSError as error:
        say(f"the plan is not kept ({error})")
