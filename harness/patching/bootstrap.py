"""Toggles through the environment: the start of a Python process with a toggle variable set.

This code runs before the program, from a `.pth` line of a managed release or from the
`sitecustomize` that `unfix exec` puts on the path. It only installs an import hook; a process that
never imports SGLang is not changed. The plan is made in unfix's own environment and cached, so the
first of a server's many processes makes it and the others read it.

Invariant: a process whose toggles cannot be applied ends before its program runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from harness.core import paths
from harness.core.code_digest import compute_digest, digest_code
from harness.core.cpp_tokens import is_cpp_path
from harness.core.files import write_atomically
from harness.core.stderr import report_to_stderr
from harness.patching.attestation import AttestationRecorder
from harness.patching.import_hook import SGLANG_PACKAGE, PatchedModuleText, PatchingFinder

REVERT_VARIABLE = "SGLANG_DEBUG_REVERT_PR"
ENABLE_VARIABLE = "SGLANG_DEBUG_ENABLE_PR"
# SGLang parses its own variable as one integer, so unfix's ids move to a second variable for the
# children, as 'remaining value|our ids'. Example: '27460,901' becomes '901', and '901|27460' here.
# If a child sets SGLang's variable to another value, the second variable no longer applies.
CARRIED_REVERT_VARIABLE = "UNFIX_REVERT"
FOLDERS_VARIABLE = "UNFIX_TOGGLES"
ATTESTATIONS_VARIABLE = "UNFIX_ATTESTATIONS"
PLANNER_VARIABLE = "UNFIX_PLANNER"
PLANNER_PATH_VARIABLE = "UNFIX_PLANNER_PATH"

CODE_DIGEST = digest_code("patching")
recorder: AttestationRecorder | None = None


def split_ids(text: str) -> list[str]:
    """Split a list of ids; SGLang's own default, 0, is no id."""
    listed = [word.strip().lstrip("#") for word in text.split(",")]
    return [word for word in listed if word and word != "0"]


def read_requested_ids() -> tuple[list[str], list[str]]:
    """Read the ids that the environment reverts, and those that it enables."""
    own = os.environ.get(REVERT_VARIABLE, "")
    left, _, carried = os.environ.get(CARRIED_REVERT_VARIABLE, "").partition("|")
    revert = split_ids(own) + (
        split_ids(carried) if REVERT_VARIABLE in os.environ and own == left else []
    )
    return list(dict.fromkeys(revert)), split_ids(os.environ.get(ENABLE_VARIABLE, ""))


def read_toggle_folders(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Read the toggle folders in addition to the project's own."""
    return [folder for folder in environment.get(FOLDERS_VARIABLE, "").split(os.pathsep) if folder]


def install_import_hook() -> None:
    """Apply the toggles of the environment to every SGLang module that this process imports."""
    if any(isinstance(finder, PatchingFinder) for finder in sys.meta_path):
        return
    revert, enable = read_requested_ids()
    if revert or enable:
        if SGLANG_PACKAGE in sys.modules:
            exit_process(f"{SGLANG_PACKAGE} was imported before its toggles could be applied")
        sys.meta_path.insert(
            0, PatchingFinder(lambda p: _load_plan_or_exit(p, revert, enable), exit_process)
        )


def exit_process(message: str, code: int = 3) -> NoReturn:
    """End the process before it serves a request, also when a thread runs the import."""
    report_to_stderr(message)
    if sys.is_finalizing():
        os._exit(code)
    if threading.current_thread() is not threading.main_thread():
        os._exit(code)
    raise SystemExit(code)


def _load_plan_or_exit(
    package: str, revert: list[str], enable: list[str]
) -> tuple[list[PatchedModuleText], AttestationRecorder]:
    try:
        return _load_plan(package, revert, enable)
    except Exception as error:
        exit_process(f"toggles cannot be applied: {error!r}")


def _load_plan(
    package: str, revert: list[str], enable: list[str]
) -> tuple[list[PatchedModuleText], AttestationRecorder]:
    global recorder
    request = {"root": str(Path(package).parent), "revert": revert, "enable": enable}
    answer = fetch_plan({**request, "folders": read_toggle_folders()}, _run_planner)
    if "error" in answer:
        exit_process(answer["error"], answer["exit_code"])
    chosen = answer["plan"]
    folder = Path(
        os.environ.get(ATTESTATIONS_VARIABLE) or paths.state_folder() / "attestations" / "loose"
    )
    try:
        recorder = AttestationRecorder(folder)
        toggles = [{"id": i, "direction": d, "title": t} for i, d, t in chosen["toggles"]]
        if toggles:
            recorder.record_toggles(chosen["release"], toggles)
    except OSError as error:
        exit_process(
            f"no attestation can be written in {folder} ({error}), so no toggle is applied"
        )
    for toggle in toggles:
        verb = "REVERTED" if toggle["direction"] == "revert" else "ENABLED"
        report_to_stderr(
            f"pid {os.getpid()} runs SGLang {chosen['release']} with {verb} "
            f"{toggle['id']}: {toggle['title']}"
        )
    _pass_rest_to_upstream(answer)
    if sys.excepthook is sys.__excepthook__:
        # Python's own hook prints lines of the file on disk; this one prints the patched lines.
        sys.excepthook = traceback.print_exception
    modules = [PatchedModuleText.from_data(module) for module in chosen["modules"]]
    _patch_cuda_sources([m for m in modules if is_cpp_path(m.module)], Path(package).parent)
    return [module for module in modules if not is_cpp_path(module.module)], recorder


def _patch_cuda_sources(modules: list[PatchedModuleText], root: Path) -> None:
    if not modules:
        return
    from harness.patching import cuda_modules, cuda_sources

    assert recorder is not None
    cuda_modules.install_module_hooks()
    for module in modules:
        if compute_digest((root / module.module).read_text()) != module.digest:
            exit_process(f"{module.module} changed while toggles were being applied: start again")
        patched = cuda_sources.attest_patched_source(module, recorder)
        cuda_sources.PATCHES.set(module.module, patched)
        recorder.record_module(module.module)


def _pass_rest_to_upstream(answer: dict[str, Any]) -> None:
    if REVERT_VARIABLE in os.environ:
        os.environ[REVERT_VARIABLE] = left = answer["upstream"] or "0"
        os.environ[CARRIED_REVERT_VARIABLE] = f"{left}|{','.join(answer['ours'])}"


def fetch_plan(
    request: dict[str, Any], ask_planner: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the planner's answer for a release and its toggles, from the cache if it is there."""
    cached = paths.state_folder() / "plans" / f"{_compute_plan_key(request)}.json"
    try:
        answer: dict[str, Any] = json.loads(cached.read_text())
        if all(_sign_file(Path(m["path"])) == m["signature"] for m in answer["read"]):
            return answer
    except (OSError, ValueError, KeyError):
        answer = {}  # not cached yet, or truncated: ask the planner
    answer = ask_planner(request)
    if "error" not in answer:
        for module in answer["read"]:
            module["signature"] = _sign_file(Path(module["path"]))
        _save_plan(cached, answer)
    return answer


def _run_planner(request: dict[str, Any]) -> dict[str, Any]:
    python = os.environ.get(PLANNER_VARIABLE) or sys.executable
    ours = (REVERT_VARIABLE, ENABLE_VARIABLE, CARRIED_REVERT_VARIABLE, "PYTHONPATH", "PYTHONHOME")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    import_path = [str(paths.HARNESS_FOLDER.parent), os.environ.get(PLANNER_PATH_VARIABLE, "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, import_path))
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
        exit_process(f"the planner does not run under {python} ({error}): run ./unfix doctor")
    except ValueError:
        exit_process(f"the planner failed under {python}: {done.stderr.strip()[-2000:]}")


def _compute_plan_key(request: dict[str, Any]) -> str:
    """Hash the request, the toggle files and the code of the planner to the key of a plan."""
    planner = os.environ.get(PLANNER_VARIABLE) or sys.executable
    parts: list[str | bytes] = [json.dumps(request, sort_keys=True), planner, CODE_DIGEST]
    for folder in [paths.toggles_folder(), paths.proposed_folder(), *map(Path, request["folders"])]:
        for path in sorted(folder.glob("*.yaml")):
            parts += [str(path), path.read_bytes()]
    return compute_digest(*parts)


def _sign_file(path: Path) -> list[Any]:
    """Return a source's content as a digest; of a compiled file of the planner, when it changed."""
    if path.suffix in (".py", ".yaml", "") or is_cpp_path(path.name):
        return [compute_digest(path.read_bytes())]
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _save_plan(path: Path, answer: dict[str, Any]) -> None:
    """Cache the plan; a disk that cannot store it costs only time."""
    try:
        write_atomically(path, json.dumps(answer))
    except OSError as error:
        report_to_stderr(f"the plan cannot be cached ({error})")
