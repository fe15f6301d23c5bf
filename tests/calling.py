"""`unfix` called as by a user, over the toy release, in a folder of its own."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forked

from harness.core import paths
from harness.releases.managed_releases import Release

TOY = Path(__file__).parent / "toy"
# A wait ends here only if it would never end: on a busy machine a second of work takes a minute.
PATIENCE_SECONDS = 300.0


def copy_toy_release(package: Path) -> None:
    """Copy the toy release for a test that writes to it: others read the original meanwhile."""
    shutil.copytree(TOY / "sglang", package, ignore=shutil.ignore_patterns("__pycache__"))


class Caller:
    """A workspace, and calls in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def environment(self) -> dict[str, str]:
        found_by = os.pathsep.join((str(paths.project_folder()), str(TOY)))
        return {**os.environ, "UNFIX_HOME": str(self.root), "PYTHONPATH": found_by}

    def again(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call `unfix` with exactly these words."""
        return self.call([*forked.UNFIX, *words])

    def call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return forked.run_unfix(command, self.root, self.environment)

    def begin(self, command: list[str]) -> subprocess.Popen[str]:
        """Start `unfix` in the background."""
        return start_program(command, cwd=self.root, env=self.environment)


def wait_until(claim: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait for another process's effect; fail the test on a timeout."""
    ends = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def list_living_processes(home: Path) -> list[str]:
    """Return processes that still work for a run in this folder."""
    found = forked.list_left_processes()
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"UNFIX_HOME={home}\0".encode() in environment and b"python" in command:
            found.append(textwrap.shorten(command.replace(b"\0", b" ").decode(), 200))
    return found


def run_program(command: Sequence[object], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and capture its output."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, **how)


def measure_processor_seconds(run: Callable[[], object]) -> float:
    """Measure the time on a processor of the processes that a function runs to their end.

    Unlike the time on a clock, it does not grow on a machine that others use.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_program(command: Sequence[object], **how: Any) -> subprocess.Popen[str]:
    """Start a program with captured output."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(word) for word in command], **(pipes | how))


def run_bare(release: Release, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program under a release's Python, with only these of our variables."""
    ours = ("UNFIX_", "PYTHON", "SGLANG_")
    others = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return run_program([release.python, "-c", program], env={**others, **variables}, cwd="/")
