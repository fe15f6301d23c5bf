"""What a process asked of the virtual device: stand-ins that ran, branches, imports, refusals.

A record is data (`as_dict`): a run on a real GPU takes the same branches, and the comparison of the
two says where the virtual device leads SGLang elsewhere.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.files import write_atomically
from harness.device.refusals import REFUSALS, find_caller

FOLDER_VARIABLE = "UNFIX_VIRTUAL_RECORDS"  # a file of this folder holds each process's record


@dataclass
class DeviceRecord:
    """Counts of one process, or of several that were read together."""

    stand_ins: Counter[str] = field(default_factory=Counter)  # calls, by package and name
    kernel_calls: Counter[str] = field(default_factory=Counter)  # of SGLang's own CUDA C++
    branches: Counter[str] = field(default_factory=Counter)  # a question, and the line that asks
    choices: Counter[str] = field(default_factory=Counter)  # an operator, and its method that ran
    imports: Counter[str] = field(default_factory=Counter)  # names of packages without a stand-in
    refusals: Counter[str] = field(default_factory=lambda: REFUSALS)  # by message
    _folder: Path | None = None

    def clear(self) -> None:
        for counts in self._list_counts().values():
            counts.clear()

    def _list_counts(self) -> dict[str, Counter[str]]:
        names = ("stand_ins", "kernel_calls", "branches", "choices", "imports", "refusals")
        return {name: getattr(self, name) for name in names}

    def count_stand_in(self, name: str) -> None:
        self._count(self.stand_ins, name)

    def count_kernel_call(self, name: str) -> None:
        self._count(self.kernel_calls, name)

    def count_branch(self, question: str) -> None:
        self._count(self.branches, f"{question} at {find_caller().rpartition('site-packages/')[2]}")

    def count_choice(self, choice: str) -> None:
        self._count(self.choices, choice)

    def count_import(self, name: str) -> None:
        self._count(self.imports, name)

    def _count(self, counts: Counter[str], name: str) -> None:
        counts[name] += 1
        if counts[name] == 1 and self._folder is not None:
            self._write()

    def write_to(self, folder: Path) -> None:
        """Keep this process's record in a file: at its end, and whenever a name is new."""
        self._folder = folder
        atexit.register(self._write)

    def _write(self) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / f"{os.getpid()}.device", json.dumps(self.as_dict()))

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {name: dict(counts) for name, counts in self._list_counts().items()}

    def add(self, values: dict[str, Any]) -> None:
        for name, counts in values.items():
            getattr(self, name).update(counts)

    def describe(self, with_calls: bool = True) -> Iterator[str]:
        """Yield a line for each refusal, and one for the stand-ins.

        The calls of a process that was killed are not all counted.
        """

        yield describe_stand_ins(self.stand_ins, with_calls)
        if self.kernel_calls:
            count = len(self.kernel_calls)
            calls = _name_all(self.kernel_calls, with_calls)
            yield f"{count} functions of SGLang's CUDA C++ ran as they are{calls}"
        for message, count in self.refusals.items():
            yield f"refused {count} times: {message}"


def describe_stand_ins(calls: Counter[str], with_calls: bool = True) -> str:
    """Describe which stand-ins computed: '2 operators of CUDA binaries had stand-ins, …'."""
    return f"{len(calls)} operators of CUDA binaries had stand-ins{_name_all(calls, with_calls)}"


def _name_all(counts: Counter[str], with_calls: bool) -> str:
    calls = f", {counts.total()} calls" if with_calls else ""
    return f"{calls}: {', '.join(sorted(counts)) or 'none'}"


RECORD = DeviceRecord()


def read_records(folder: Path) -> DeviceRecord:
    """Read the records of all processes as one."""
    total = DeviceRecord(refusals=Counter())
    for file in sorted(folder.glob("*.device")):
        total.add(json.loads(file.read_text()))
    return total
