"""The files that checked processes write: reports as they come, launch counts, libraries."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.core.files import write_atomically
from harness.kernels.gpu import KernelSummary

CHECKS_VARIABLE = "UNFIX_CHECK"  # the checks, and "stop" to end a process at its first report
FOLDER_VARIABLE = "UNFIX_CHECK_REPORTS"


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The first violation at one source line in one process."""

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


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """The reports and launches of all processes."""

    reports: list[KernelReport]
    kernels: dict[str, KernelSummary]
    processes: int
    unchecked_libraries: list[str] = field(default_factory=list)  # libraries with GPU code

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels.values())

    @property
    def checked_share(self) -> float:
        """The checked launches' share of all."""
        checked = sum(each.launches for each in self.kernels.values() if not each.refused)
        return checked / self.launches if self.launches else 0.0

    def __str__(self) -> str:
        checked = len(self.kernels) - len(self.refusals)
        return (
            f"checked {checked} of {len(self.kernels)} kernels of Triton's and "
            f"{self.checked_share:.1%} of their {self.launches} launches (a graph's count once)"
        )

    @property
    def refusals(self) -> dict[str, str]:
        """The reasons of the kernels that ran unchecked."""
        return {name: each.refused for name, each in self.kernels.items() if each.refused}


def request_checks(environment: dict[str, str], checks: str, folder: Path) -> None:
    """Have the processes of an environment check their kernels and report to a folder."""
    shutil.rmtree(folder, ignore_errors=True)  # an earlier run's reports
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
            write_atomically(file, text)


def read_reports(folder: Path) -> CheckSummary:
    kernels: dict[str, KernelSummary] = {}
    files = sorted(folder.glob("*.kernels"))
    for file in files:
        for name, data in json.loads(file.read_text()).items():
            total = kernels.setdefault(name, KernelSummary())
            total.launches += data["launches"]
            total.refused = total.refused or data["refused"]
            total.unchecked |= data["unchecked"]
    libraries = {name for file in folder.glob("*.others") for name in json.loads(file.read_text())}
    reports = sorted(_iter_reports(folder), key=lambda report: report.seconds)
    return CheckSummary(reports, kernels, len(files), sorted(libraries))


def _iter_reports(folder: Path) -> Iterator[KernelReport]:
    for file in folder.glob("*.reports"):
        for line in file.read_text().splitlines():
            data = json.loads(line)
            data["program"], data["details"] = tuple(data["program"]), tuple(data["details"])
            yield KernelReport(**data)
