"""A worker as a run sees it: started, spoken to, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from harness import paths
from harness.patching import attestation, boot
from harness.prove.messages import Fit, Key, Order, Said, Setting, Task

_LAST = 8000  # characters of a log worth showing
_FAREWELL = 1.0  # seconds to end by itself
_KEEPERS = 30.0  # seconds that a keeper may be late


class WorkerProcess:
    """One process that imports a release and runs its guards."""

    def __init__(
        self, python: Path, setting: Setting, folders: list[Path], place: Path, log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.started = time.monotonic()
        self.ready = False
        self.numbers: dict[Key, int] = {}  # of the tasks, as this worker counts them
        self.running: dict[int, Key] = {}  # by the order's serial
        self._ends: dict[int, float] = {}
        self._orders = 0
        self.reported: Counter[str] = Counter()  # reach by toggle, of the tests that came back
        self._attestations = Path(setting.folder) / "attestations"
        self._rest = b""
        there, self._write = os.pipe()
        self.read_end, back = os.pipe()
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [str(python), "-m", "harness.prove.worker", json.dumps([there, back])],
                cwd=place,
                env=_environment(setting, folders),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,  # a Ctrl-C is ours to handle
            )
        os.close(there)
        os.close(back)

    def collected(self, tasks: list[Task]) -> None:
        self.ready = True
        self.numbers = {task.key: task.number for task in tasks}

    def order(
        self, task: Key, seconds: float, memory: int, under: Iterable[tuple[str, str]] = ()
    ) -> int:
        """Have a task run; gives the order's serial."""
        self._orders += 1
        order = Order(self.numbers[task], self._orders, seconds, memory, list(under))
        self.running[order.serial] = task
        self._ends[order.serial] = time.monotonic() + seconds
        # A worker that just died is noticed by its other end.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, msgspec.json.encode(order) + b"\n")
        return order.serial

    def ask(self, question: Fit) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, msgspec.json.encode(question) + b"\n")

    def ended(self, serial: int) -> Key:
        """Which task came back."""
        del self._ends[serial]
        return self.running.pop(serial)

    def said(self) -> list[Said] | None:
        """What has come since; None once it is gone."""
        data = os.read(self.read_end, 1 << 20)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Said) for line in lines]

    def overdue(self, now: float, to_start: float, forks: bool) -> bool:
        """Whether it should have said something by now; keepers know the limits of forks."""
        if not self.ready:
            return now - self.started > to_start
        slack = _KEEPERS if forks else 0.0
        return any(now > ends + slack for ends in self._ends.values())

    def end(self, kill: bool = False) -> int:
        """End it and all below it; gives its exit code, negative for a signal."""
        with contextlib.suppress(OSError):
            os.close(self._write)
        if kill:
            self.process.send_signal(signal.SIGABRT)  # it says where it is
        try:
            code = self.process.wait(timeout=_FAREWELL)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.read_end)
        return code

    def reach(self, toggle: str) -> int:
        """How often a toggle's code ran in the test that ended this worker."""
        attested = attestation.read(self._attestations)
        ours = (a.reach(toggle) for a in attested if a.pid == self.process.pid)
        return max(0, sum(ours) - self.reported[toggle])

    def last_words(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-_LAST:].strip()
        except OSError:
            return ""


def _environment(setting: Setting, folders: list[Path]) -> dict[str, str]:
    # What the caller's environment would do to pytest is no part of a run that says what it did.
    ours = (boot.REVERT, boot.ENABLE, boot.CARRIED, "PYTEST_ADDOPTS", "PYTEST_PLUGINS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    rest = environment.get("PYTHONPATH")
    root = str(paths.project())
    engine = str(paths.PACKAGE.parent)
    found_by = list(dict.fromkeys([engine, root, *([rest] if rest else [])]))
    environment |= {
        "PYTHONPATH": os.pathsep.join(found_by),
        "PYTHONUNBUFFERED": "1",
        # Larger pages make a fork of a process that holds SGLang half as long.
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        "OMP_NUM_THREADS": "1",
        "UNFIX_RELEASE": setting.release,
        "UNFIX_WORKER": msgspec.json.encode(setting).decode(),
        "UNFIX_HOME": str(paths.workspace()),
        boot.ATTESTATIONS: str(Path(setting.folder) / "attestations"),
        boot.PLANNER: sys.executable,
    }
    if setting.device != "auto":
        environment["TRITON_INTERPRET"] = "1" if setting.device == "cpu" else "0"
    if folders:
        environment[boot.FOLDERS] = os.pathsep.join(str(folder.resolve()) for folder in folders)
    return environment
