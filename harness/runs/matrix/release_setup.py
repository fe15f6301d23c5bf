"""A release on the machine that needs it: found in place, or added once for all cells there.

Whoever comes first adds it while the others wait at a lock of the operating system. That it could
not be added is remembered for the run, so that a hundred cells do not try a hundred times.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.core import paths, processes
from harness.core.errors import UnfixError
from harness.releases import managed_releases
from harness.runs.matrix import exit_outcome

INSTALL_COMMAND = [sys.executable, "-m", "harness", "releases", "add"]


def find_needed_release(values: dict[str, str], command: list[str]) -> str:
    """The managed release that a command names, among the cell's values; '' if there is none."""
    known = {release.name for release in managed_releases.list_releases()}
    for word in command:
        for value in values.values():
            if value in known and value == word.rpartition("=")[2]:
                return value
    return ""


def prepare_release(name: str, run_id: str, install_command: list[str], log: Path) -> str:
    """Have a release ready; gives in words why it is not."""
    release = managed_releases.get_release(name)
    if release.is_ready:
        return ""
    paths.releases_folder().mkdir(parents=True, exist_ok=True)
    with open(paths.releases_folder() / f".{name}.matrix", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if release.is_ready:
            return ""
        failed = _locate_failure_file(run_id, name)
        if failed.exists():
            return failed.read_text()
        why = _install_release(name, install_command or INSTALL_COMMAND, log)
        if why:
            failed.parent.mkdir(parents=True, exist_ok=True)
            failed.write_text(why)
        return why


def _install_release(name: str, install_command: list[str], log: Path) -> str:
    asked = f"`unfix releases add {name}`"
    try:
        with log.open("ab") as output:
            done = subprocess.run(
                [*install_command, name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    except OSError as error:
        raise UnfixError(f"{asked} cannot be run here: {error}") from error
    if done.returncode:
        said = processes.read_log_tail(log, exit_outcome.LOG_TAIL_BYTES).strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return f"SGLang {name} is not ready: {asked} ended {done.returncode}{last}"
    if not managed_releases.get_release(name).is_ready:
        return f"SGLang {name} is not ready, although {asked} ended well"
    return ""


def _locate_failure_file(run_id: str, name: str) -> Path:
    """In the machine's own temporary folder: a workspace may be shared by several machines."""
    return Path(tempfile.gettempdir()) / f"unfix-{run_id}" / f"{name}.failed"
