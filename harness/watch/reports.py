"""What checked processes leave in a folder: reports as they come, and what was checked at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CHECKS = "UNFIX_CHECK"  # what is asked for, in words
FOLDER = "UNFIX_CHECK_REPORTS"


@dataclass(frozen=True, slots=True)
class Report:
    """One place in one process that did what it must not: the first time, in words."""

    kind: str
    kernel: str
    file: str
    line: int
    text: str
    program: tuple[int, int, int]
    headline: str
    details: tuple[str, ...]
    pid: int
    seconds: float  # since the process launched its first kernel

    @property
    def in_a_line(self) -> str:
        return f"{self.headline} ({self.file}:{self.line}, program {self.program})"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}  {self.text}"
        return "\n  ".join([self.headline, where, f"program {self.program}", *self.details])


@dataclass(slots=True)
class Kernel:
    """How often one was launched, and why it ran as it is, if it did."""

    launches: int = 0
    refused: str = ""
    unchecked: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checked:
    """Of all processes together."""

    reports: list[Report]
    kernels: dict[str, Kernel]
    processes: int
    others: list[str] = field(default_factory=list)  # libraries whose GPU code nobody looked at

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels.values())

    @property
    def share(self) -> float:
        """Of the launches, how many were checked."""
        checked = sum(one.launches for one in self.kernels.values() if not one.refused)
        return checked / self.launches if self.launches else 0.0

    def __str__(self) -> str:
        whole = len(self.kernels) - len(self.refused)
        return (
            f"checked {whole} of {len(self.kernels)} kernels of Triton's and "
            f"{self.share:.1%} of their {self.launches} launches (a graph's count once)"
        )

    @property
    def refused(self) -> dict[str, str]:
        """What ran as it is, and why."""
        return {name: one.refused for name, one in self.kernels.items() if one.refused}


def ask(environment: dict[str, str], words: str, folder: Path) -> None:
    """Have what runs in an environment check, and leave what it finds in a folder."""
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier run left there
    environment[CHECKS], environment[FOLDER] = words, str(folder)


class Writer:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._reports = folder / f"{os.getpid()}.reports"
        self._kernels = folder / f"{os.getpid()}.kernels"
        self._others = folder / f"{os.getpid()}.others"
        self._last: dict[Path, str] = {}

    def report(self, report: Report) -> None:
        with self._reports.open("a") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    def kernels(self, kernels: dict[str, Kernel]) -> None:
        self._put(self._kernels, {name: asdict(kernel) for name, kernel in kernels.items()})

    def others(self, names: list[str]) -> None:
        self._put(self._others, names)

    def _put(self, file: Path, what: Any) -> None:
        text = json.dumps(what)
        if text != self._last.get(file):
            self._last[file] = text
            made = file.with_suffix(".part")
            made.write_text(text)
            os.replace(made, file)


def read(folder: Path) -> Checked:
    kernels: dict[str, Kernel] = {}
    files = sorted(folder.glob("*.kernels"))
    for file in files:
        for name, data in json.loads(file.read_text()).items():
            whole = kernels.setdefault(name, Kernel())
            whole.launches += data["launches"]
            whole.refused = whole.refused or data["refused"]
            whole.unchecked |= data["unchecked"]
    others = {name for file in folder.glob("*.others") for name in json.loads(file.read_text())}
    reports = sorted(_reports(folder), key=lambda one: one.seconds)
    return Checked(reports, kernels, len(files), sorted(others))


def _reports(folder: Path) -> Iterator[Report]:
    for file in folder.glob("*.reports"):
        for line in file.read_text().splitlines():
            data = json.loads(line)
            data["program"], data["details"] = tuple(data["program"]), tuple(data["details"])
            yield Report(**data)
