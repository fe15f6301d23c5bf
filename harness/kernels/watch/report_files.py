"""What checked processes leave in a folder: reports as they come, and what was checked at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CHECKS_VARIABLE = "UNFIX_CHECK"  # what is asked for, in words
FOLDER_VARIABLE = "UNFIX_CHECK_REPORTS"


@dataclass(frozen=True, slots=True)
class KernelReport:
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
    def summary_line(self) -> str:
        return f"{self.headline} ({self.file}:{self.line}, program {self.program})"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}  {self.text}"
        return "\n  ".join([self.headline, where, f"program {self.program}", *self.details])


@dataclass(slots=True)
class KernelSummary:
    """How often one was launched, and why it ran as it is, if it did."""

    launches: int = 0
    refused: str = ""
    unchecked: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """Of all processes together."""

    reports: list[KernelReport]
    kernels: dict[str, KernelSummary]
    processes: int
    unchecked_libraries: list[str] = field(
        default_factory=list
    )  # libraries whose GPU code nobody looked at

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels.values())

    @property
    def checked_share(self) -> float:
        """Of the launches, how many were checked."""
        checked = sum(one.launches for one in self.kernels.values() if not one.refused)
        return checked / self.launches if self.launches else 0.0

    def __str__(self) -> str:
        whole = len(self.kernels) - len(self.refusals)
        return (
            f"checked {whole} of {len(self.kernels)} kernels of Triton's and "
            f"{self.checked_share:.1%} of their {self.launches} launches (a graph's count once)"
        )

    @property
    def refusals(self) -> dict[str, str]:
        """What ran as it is, and why."""
        return {name: one.refused for name, one in self.kernels.items() if one.refused}


def request_checks(environment: dict[str, str], checks: str, folder: Path) -> None:
    """Have what runs in an environment check, and leave what it finds in a folder."""
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier run left there
    environment[CHECKS_VARIABLE], environment[FOLDER_VARIABLE] = checks, str(folder)


class ReportWriter:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._reports_file = folder / f"{os.getpid()}.reports"
        self._kernels_file = folder / f"{os.getpid()}.kernels"
        self._libraries_file = folder / f"{os.getpid()}.others"
        self._written: dict[Path, str] = {}

    def write_report(self, report: KernelReport) -> None:
        with self._reports_file.open("a") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    def write_kernels(self, kernels: dict[str, KernelSummary]) -> None:
        self._write_if_changed(
            self._kernels_file, {name: asdict(kernel) for name, kernel in kernels.items()}
        )

    def write_libraries(self, names: list[str]) -> None:
        self._write_if_changed(self._libraries_file, names)

    def _write_if_changed(self, file: Path, value: Any) -> None:
        text = json.dumps(value)
        if text != self._written.get(file):
            self._written[file] = text
            made = file.with_suffix(".part")
            made.write_text(text)
            os.replace(made, file)


def read_reports(folder: Path) -> CheckSummary:
    kernels: dict[str, KernelSummary] = {}
    files = sorted(folder.glob("*.kernels"))
    for file in files:
        for name, data in json.loads(file.read_text()).items():
            whole = kernels.setdefault(name, KernelSummary())
            whole.launches += data["launches"]
            whole.refused = whole.refused or data["refused"]
            whole.unchecked |= data["unchecked"]
    others = {name for file in folder.glob("*.others") for name in json.loads(file.read_text())}
    reports = sorted(_iter_reports(folder), key=lambda one: one.seconds)
    return CheckSummary(reports, kernels, len(files), sorted(others))


def _iter_reports(folder: Path) -> Iterator[KernelReport]:
    for file in folder.glob("*.reports"):
        for line in file.read_text().splitlines():
            data = json.loads(line)
            data["program"], data["details"] = tuple(data["program"]), tuple(data["details"])
            yield KernelReport(**data)
