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

from harness import paths, processes
from harness.errors import UnfixError
from harness.matrix import outcomes
from harness.releases import managed

ADDING = [sys.executable, "-m", "harness", "releases", "add"]


def needed(values: dict[str, str], command: list[str]) -> str:
    """The managed release that a command names, among the cell's values; '' if there is none."""
    known = {release.name for release in managed.all_releases()}
    for word in command:
        for value in values.values():
            if value in known and value == word.rpartition("=")[2]:
                return value
    return ""


def why_not(name: str, run: str, adding: list[str], log: Path) -> str:
    """Have a release ready; gives in words why it is not."""
    release = managed.get(name)
    if release.ready:
        return ""
    paths.releases().mkdir(parents=True, exist_ok=True)
    with open(paths.releases() / f".{name}.matrix", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if release.ready:
            return ""
        failed = _memory(run, name)
        if failed.exists():
            return failed.read_text()
        why = _add(name, adding or ADDING, log)
        if why:
            failed.parent.mkdir(parents=True, exist_ok=True)
            failed.write_text(why)
        return why


def _add(name: str, words: list[str], log: Path) -> str:
    asked = f"`unfix releases add {name}`"
    try:
        with log.open("ab") as output:
            done = subprocess.run(
                [*words, name], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
    except OSError as error:
        raise UnfixError(f"{asked} cannot be run here: {error}") from error
    if done.returncode:
        said = processes.said_last(log, outcomes.TAIL).strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return f"SGLang {name} is not ready: {asked} ended {done.returncode}{last}"
    if not managed.get(name).ready:
        return f"SGLang {name} is not ready, although {asked} ended well"
    return ""


def _memory(run: str, name: str) -> Path:
    """In the machine's own temporary folder: a workspace may be shared by several machines."""
    return Path(tempfile.gettempdir()) / f"unfix-{run}" / f"{name}.failed"
