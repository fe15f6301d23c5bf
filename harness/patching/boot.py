"""Toggles through the environment: what a Python process does when one of the variables is set.

Runs before the program, from a `.pth` line of a managed release or from the `sitecustomize` that
`unfix exec` puts on the path. It only sets up a finder: a process that never imports SGLang is
left alone. The plan is made in unfix's own environment and kept, so that of a server's many
processes one pays for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from harness import paths
from harness.patching.attestation import Recorder
from harness.patching.importing import Patched, PatchingFinder

REVERT = "SGLANG_DEBUG_REVERT_PR"
ENABLE = "SGLANG_DEBUG_ENABLE_PR"
# SGLang reads its own variable as one integer, so what is ours travels on in another.
CARRIED = "UNFIX_REVERT"
FOLDERS = "UNFIX_TOGGLES"
ATTESTATIONS = "UNFIX_ATTESTATIONS"
PYTHON = "UNFIX_PYTHON"
PLANNER_PATH = "UNFIX_PYTHONPATH"

recorder: Recorder | None = None


def words(name: str) -> list[str]:
    """The ids a variable lists; SGLang's own default, 0, asks for nothing."""
    listed = [word.strip().lstrip("#") for word in os.environ.get(name, "").split(",")]
    return [word for word in listed if word and word != "0"]


def install() -> None:
    """Have toggles applied to whatever this process imports of SGLang."""
    if any(isinstance(finder, PatchingFinder) for finder in sys.meta_path):
        return
    revert = list(dict.fromkeys(words(REVERT) + words(CARRIED)))
    enable = words(ENABLE)
    if revert or enable:
        sys.meta_path.insert(0, PatchingFinder(lambda p: _arm(p, revert, enable), stop))


def stop(message: str, code: int = 3) -> NoReturn:
    """End the process before it serves anything, also when a thread was the one to import."""
    print(f"unfix: {message}", file=sys.stderr, flush=True)
    if threading.current_thread() is not threading.main_thread():
        os._exit(code)
    raise SystemExit(code)


def _arm(package: str, revert: list[str], enable: list[str]) -> tuple[list[Patched], Recorder]:
    global recorder
    answer = _plan(str(Path(package).parent), revert, enable)
    if "error" in answer:
        stop(answer["error"], answer["exit_code"])
    _leave_the_rest_to_upstream(answer)
    plan = answer["plan"]
    folder = Path(os.environ.get(ATTESTATIONS) or paths.state() / "attestations" / "loose")
    try:
        recorder = Recorder(folder)
        toggles = [{"id": i, "direction": d, "title": t} for i, d, t in plan["toggles"]]
        if toggles:
            recorder.applied(plan["release"], toggles)
    except OSError as error:
        stop(f"no attestation can be left in {folder} ({error}), so no toggle is applied")
    for toggle in toggles:
        verb = "REVERTED" if toggle["direction"] == "revert" else "ENABLED"
        print(
            f"unfix: pid {os.getpid()} runs SGLang {plan['release']} with {verb} "
            f"{toggle['id']}: {toggle['title']}",
            file=sys.stderr,
            flush=True,
        )
    return [Patched.from_data(module) for module in plan["modules"]], recorder


def _leave_the_rest_to_upstream(answer: dict[str, Any]) -> None:
    os.environ[CARRIED] = ",".join(answer["ours"])
    if answer["upstream"]:
        os.environ[REVERT] = answer["upstream"]
    else:
        os.environ.pop(REVERT, None)


def _plan(root: str, revert: list[str], enable: list[str]) -> dict[str, Any]:
    """The planner's answer for this release and these toggles, from the last time or afresh."""
    folders = [f for f in os.environ.get(FOLDERS, "").split(os.pathsep) if f]
    request = {"root": root, "revert": revert, "enable": enable, "folders": folders}
    kept = paths.state() / "plans" / f"{_key(request)}.json"
    try:
        answer: dict[str, Any] = json.loads(kept.read_text())
        if all(_signature(Path(m["path"])) == m["signature"] for m in answer["read"]):
            return answer
    except (OSError, ValueError, KeyError):
        pass  # not kept yet, or cut short: it is made again below
    answer = _ask_planner(request)
    if "error" not in answer:
        for module in answer["read"]:
            module["signature"] = _signature(Path(module["path"]))
        _keep(kept, answer)
    return answer


def _ask_planner(request: dict[str, Any]) -> dict[str, Any]:
    python = os.environ.get(PYTHON) or sys.executable
    ours = (REVERT, ENABLE, CARRIED, "PYTHONPATH", "PYTHONHOME")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    found_by = [str(paths.PACKAGE.parent), os.environ.get(PLANNER_PATH, "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, found_by))
    try:
        done = subprocess.run(
            [python, "-m", "harness.patching.planner"],
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
        seen += [str(_signature(p)) for p in sorted(folder.glob("*.yaml"))]
    for package in ("registry", "matching", "patching", "releases"):
        seen += [str(_signature(p)) for p in sorted((paths.PACKAGE / package).glob("*.py"))]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:24]


def _signature(path: Path) -> list[Any]:
    found = path.stat()
    return [str(path), found.st_size, found.st_mtime_ns]


def _keep(path: Path, answer: dict[str, Any]) -> None:
    """Keeping the plan only saves time: a disk that does not take it is not an error."""
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(answer))
        os.replace(temporary, path)
    except OSError as error:
        print(f"unfix: the plan is not kept ({error})", file=sys.stderr)
