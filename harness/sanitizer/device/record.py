"""What a process asked of the virtual device: stand-ins that ran, branches, imports, refusals.

A record is data (`as_dict`): a run on a real GPU takes the same branches, and the comparison of the
two says where the virtual device leads a program elsewhere.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.mapped_counts import MappedCounts, read_counts
from harness.core.wording import format_count
from harness.sanitizer.device.callers import find_caller

FOLDER_VARIABLE = "UNFIX_VIRTUAL_RECORDS"  # files of this folder hold each process's record
KINDS = ("stand_ins", "kernel_calls", "branches", "choices", "imports", "refusals")


class RecordFile:
    """The counts of one process in files: a line a name, numbers in mapped memory.

    A process that is killed loses none. Example: `42-1a.device` has the names as they come, and
    `42-1a-0.counts` the counts of the first 4096 of them.
    """

    SIZE = 4096  # names of one mapped file

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{os.getpid()}-{time.time_ns():x}.device"
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: list[MappedCounts] = []

    def count(self, kind: str, name: str) -> None:
        number = self._numbers.setdefault((kind, name), len(self._numbers))
        place, slot = divmod(number, self.SIZE)
        if place == len(self._counts):
            self._counts.append(MappedCounts(_locate_counts(self._file, place), self.SIZE))
        self._counts[place].add(slot)
        if self._counts[place][slot] == 1:
            with open(self._file, "a") as names:
                names.write(json.dumps([kind, name]) + "\n")


def _locate_counts(file: Path, place: int) -> Path:
    return file.with_name(f"{file.stem}-{place}.counts")


@dataclass
class DeviceRecord:
    """Counts of one process, or of several that were read together."""

    stand_ins: Counter[str] = field(default_factory=Counter)  # calls, by package and name
    kernel_calls: Counter[str] = field(default_factory=Counter)  # of CUDA C++ that ran here
    branches: Counter[str] = field(default_factory=Counter)  # a question, and the line that asks
    choices: Counter[str] = field(default_factory=Counter)  # an operator, and its method that ran
    imports: Counter[str] = field(default_factory=Counter)  # names of packages without a stand-in
    refusals: Counter[str] = field(default_factory=Counter)  # by message
    _folder: Path | None = None
    _file: RecordFile | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def clear(self) -> None:
        for kind in KINDS:
            getattr(self, kind).clear()

    def count_stand_in(self, name: str) -> None:
        self._count("stand_ins", name)

    def count_kernel_call(self, name: str) -> None:
        self._count("kernel_calls", name)

    def count_branch(self, question: str) -> None:
        place = find_caller().rpartition("site-packages/")[2]
        self._count("branches", f"{question} at {place}")

    def count_choice(self, choice: str) -> None:
        self._count("choices", choice)

    def count_import(self, name: str) -> None:
        self._count("imports", name)

    def count_refusal(self, message: str) -> None:
        self._count("refusals", message)

    def _count(self, kind: str, name: str) -> None:
        with self._lock:
            getattr(self, kind)[name] += 1
            if self._folder is not None:
                self._file = self._file or RecordFile(self._folder)
                self._file.count(kind, name)

    def write_to(self, folder: Path) -> None:
        """Write what is counted from here on to files of this process, and of each fork of it."""
        if self._folder is None:
            os.register_at_fork(after_in_child=self._after_fork)
        self._folder, self._file = folder, None

    def _after_fork(self) -> None:
        """Begin files of its own, with counts of zero: the parent's counts are in the parent's."""
        self._lock = threading.RLock()
        self._file = None

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {kind: dict(getattr(self, kind)) for kind in KINDS}

    def describe(self) -> Iterator[str]:
        """Yield a line for the stand-ins, one for CUDA C++ that ran, and one a refusal."""
        if self.stand_ins:
            yield describe_stand_ins(self.stand_ins)
        yield from self.describe_others()

    def describe_others(self) -> Iterator[str]:
        if self.kernel_calls:
            functions = format_count(len(self.kernel_calls), "function")
            calls = _name_all(self.kernel_calls)
            yield f"{functions} of CUDA C++ ran, {calls}"
        for message, count in self.refusals.items():
            yield f"refused {format_count(count, 'time')}: {message}"


def describe_stand_ins(calls: Mapping[str, int]) -> str:
    """Describe what stand-ins computed: '2 operators …, 5 calls: jit:a.run 2, toy.b 3', or ''."""
    if not calls:
        return ""
    count = format_count(len(calls), "operator")
    return f"{count} of CUDA binaries had stand-ins, {_name_all(calls)}"


def _name_all(calls: Mapping[str, int]) -> str:
    names = ", ".join(f"{name} {count}" for name, count in sorted(calls.items()))
    return f"{format_count(sum(calls.values()), 'call')}: {names}"


RECORD = DeviceRecord()


def read_records(folder: Path) -> DeviceRecord:
    """Read the records of all processes as one; those that still run are read as they stand."""
    total = DeviceRecord()
    for file in sorted(folder.glob("*.device")):
        *lines, _ = file.read_text().split("\n")  # its process may be writing another one
        names = [json.loads(line) for line in lines]
        for begin in range(0, len(names), RecordFile.SIZE):
            part = names[begin : begin + RecordFile.SIZE]
            numbers = read_counts(_locate_counts(file, begin // RecordFile.SIZE), len(part))
            for (kind, name), number in zip(part, numbers, strict=True):
                getattr(total, kind)[name] += number
    return total
