"""Installs the release that a cell needs, once on each machine.

The first cell installs it while the others wait at a file lock. A failure is recorded for the run,
so that a hundred cells do not try a hundred times.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.core import paths, processes
from harness.core.errors import UnfixError
from harness.releases import added_releases, managed_releases
from harness.runs.matrix import exit_outcome

RELEASE_AXIS = "release"
INSTALL_COMMAND = [sys.executable, "-m", "harness", "releases", "add"]


def find_needed_release(values: dict[str, str], command: list[str]) -> str:
    """Find the release in the cell's values that its command names; '' if none is.

    It is a managed release's name, or on the axis `release` the path of a wheel or a checkout.
    """
    known = {release.name for release in managed_releases.list_known_releases()}
    if RELEASE_AXIS in values and managed_releases.is_path(values[RELEASE_AXIS]):
        known.add(values[RELEASE_AXIS])
    for word in command:
        for value in values.values():
            if value in known and value == word.rpartition("=")[2]:
                return value
    return ""


def prepare_release(name: str, run_id: str, install_command: list[str], log: Path) -> str:
    """Install a release if it is not ready; return the reason if that fails, else ''."""
    if _is_ready(name):
        return ""
    paths.releases_folder().mkdir(parents=True, exist_ok=True)
    file_name = name.replace("/", "%")
    with open(paths.releases_folder() / f".{file_name}.matrix", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_ready(name):
            return ""
        failure_file = _locate_failure_file(run_id, file_name)
        if failure_file.exists():
            return failure_file.read_text()
        failure = _install_release(name, install_command or INSTALL_COMMAND, log)
        if failure:
            failure_file.parent.mkdir(parents=True, exist_ok=True)
            failure_file.write_text(failure)
        return failure


def _is_ready(name: str) -> bool:
    """Return whether a release is ready; a checkout is, once it is packed as it is now."""
    if not managed_releases.is_path(name):
        return managed_releases.get_release(name).is_ready
    try:
        return added_releases.find_release(name, "cpu", lambda _: None).is_ready
    except UnfixError:
        return False  # `releases add` gives the reason


def _install_release(name: str, install_command: list[str], log: Path) -> str:
    command = f"`unfix releases add {name}`"
    try:
        with log.open("ab") as output:
            process = subprocess.run(
                [*install_command, name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    except OSError as error:
        raise UnfixError(f"{command} cannot be run here: {error}") from error
    if process.returncode:
        lines = processes.read_log_tail(log, exit_outcome.LOG_TAIL_BYTES).strip().splitlines()
        last_line = f": {lines[-1]}" if lines else ""
        return f"SGLang {name} is not ready: {command} ended {process.returncode}{last_line}"
    if not _is_ready(name):
        return f"SGLang {name} is not ready, although {command} ended with 0"
    return ""


def _locate_failure_file(run_id: str, name: str) -> Path:
    """Return a file in this machine's temporary folder: machines may share a workspace."""
    return Path(tempfile.gettempdir()) / f"unfix-{run_id}" / f"{name}.failed"
