"""A worker as a run sees it: started, spoken to, ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from harness import paths
from harness.lines import Child
from harness.patching import attestation, boot
from harness.prove.messages import AnySetting, Key, Order, Said, Setting, Task
from harness.releases import engines
from harness.store.prove.values import Side

Heard = TypeVar("Heard")

_LAST = 8000  # characters of a log worth showing
_FAREWELL = 1.0  # seconds to end by itself
_KEEPERS = 30.0  # seconds that a keeper may be late
# One order of sets for all workers of a run: no two sides differ in it.
_HASHES = str(secrets.randbelow(2**32))


class WorkerProcess(Child, Generic[Heard]):
    """One process that imports a release and runs tests there, as `session.py` has it."""

    module: ClassVar[str]  # what it is
    says: ClassVar[Any]  # and the shapes of what it says

    def __init__(
        self, python: Path, setting: AnySetting, folders: list[Path], place: Path, log: Path
    ) -> None:
        command = [str(python), "-m", self.module]
        super().__init__(command, _environment(setting, folders), log, place)
        self.folder = Path(setting.folder)
        self.started = time.monotonic()

    @property
    def read_end(self) -> int:
        return self.line.read_end

    def tell(self, what: msgspec.Struct) -> None:
        # A worker that just died is noticed by its other end.
        with contextlib.suppress(BrokenPipeError):
            self.line.say(msgspec.json.encode(what))

    def tell_soon(self, what: msgspec.Struct) -> None:
        """To a worker that may have as much to say, and waits for somebody to listen."""
        with contextlib.suppress(BrokenPipeError):
            self.line.say_soon(msgspec.json.encode(what))

    def said(self) -> list[Heard] | None:
        """What has come since; None once it is gone."""
        lines = self.line.heard()
        if self.line.over:
            return None
        return [msgspec.json.decode(line, type=self.says) for line in lines]

    def first(self, seconds: float) -> Heard | None:
        """What it says first, so many seconds after its start at the latest."""
        while (left := self.started + seconds - time.monotonic()) > 0:
            said = self.said() if select.select([self.read_end], [], [], left)[0] else None
            if said is None or said:
                return said[0] if said else None
        return None

    def end(self, kill: bool = False) -> int:
        """End it and all below it; gives its exit code, negative for a signal."""
        self.line.hang_up()
        if kill:
            self.process.send_signal(signal.SIGABRT)  # it says where it is
        code = self.wait(_FAREWELL)
        self.line.close()
        return code

    def last_words(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-_LAST:].strip()
        except OSError:
            return ""


class GuardWorker(WorkerProcess[Said]):
    """One that runs guards."""

    module = "harness.prove.worker"
    says = Said

    def __init__(
        self, python: Path, setting: Setting, folders: list[Path], place: Path, log: Path
    ) -> None:
        super().__init__(python, setting, folders, place, log)
        self.ready = False
        self.numbers: dict[Key, int] = {}  # of the tasks, as this worker counts them
        self.running: dict[int, Key] = {}  # by the order's serial
        self._ends: dict[int, float] = {}
        self._orders = 0
        self.reported: Counter[str] = Counter()  # reach by toggle, of the tests that came back

    def collected(self, tasks: list[Task]) -> None:
        self.ready = True
        self.numbers = {task.key: task.number for task in tasks}

    def order(
        self,
        task: Key,
        seconds: float,
        memory: int,
        under: Iterable[tuple[str, str]] = (),
        *,
        chance: int | None = None,
        again: Side | None = None,
        whole: bool = False,
    ) -> int:
        """Have a task run, or what of it `again` says, and then the `whole`; gives the serial."""
        self._orders += 1
        order = Order(self.numbers[task], self._orders, seconds, memory, list(under), chance)
        if again is not None:
            order.way, order.blob, order.whole = again.way, again.blob, whole
        self.running[order.serial] = task
        self._ends[order.serial] = time.monotonic() + seconds
        self.tell(order)
        return order.serial

    def ended(self, serial: int) -> Key:
        """Which task came back."""
        del self._ends[serial]
        return self.running.pop(serial)

    def overdue(self, now: float, to_start: float, forks: bool) -> bool:
        """Whether it should have said something by now; keepers know the limits of forks."""
        if not self.ready:
            return now - self.started > to_start
        slack = _KEEPERS if forks else 0.0
        return any(now > ends + slack for ends in self._ends.values())

    def reach(self, toggle: str) -> int:
        """How often a toggle's code ran in the test that ended this worker."""
        attested = attestation.read(self.folder / "attestations")
        ours = (a.reach(toggle) for a in attested if a.pid == self.process.pid)
        return max(0, sum(ours) - self.reported[toggle])


def _environment(setting: AnySetting, folders: list[Path]) -> dict[str, str]:
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
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", _HASHES),
        # A release is ours: without its modules' bytecode an import takes three times as long.
        "PYTHONDONTWRITEBYTECODE": "",
        # Larger pages make a fork of a process that holds SGLang half as long.
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        "OMP_NUM_THREADS": "1",
        "UNFIX_RELEASE": setting.release,
        "UNFIX_WORKER": msgspec.json.encode(setting).decode(),
        boot.ATTESTATIONS: str(Path(setting.folder) / "attestations"),
    }
    engines.tell(environment)
    if folders:
        environment[boot.FOLDERS] = os.pathsep.join(str(folder.resolve()) for folder in folders)
    return environment
