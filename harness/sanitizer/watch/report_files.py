"""The files of checked processes: reports as they come, launch counts, libraries, failures."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.files import write_atomically
from harness.core.wording import format_count
from harness.sanitizer.gpu.kernel_summaries import KernelSummaries, KernelSummary, label_kernels

if TYPE_CHECKING:  # it needs torch, which a command that reads the files may not have
    from harness.sanitizer.violations.exceptions import Violation

CHECKS_VARIABLE = "UNFIX_CHECK"  # the checks, and "stop" to end a process at its first report
FOLDER_VARIABLE = "UNFIX_CHECK_REPORTS"
# The folder of the CUDA toolkit that writes checks into kernels, and of what it has built.
CHECKED_CUDA_VARIABLE = "UNFIX_CHECKED_CUDA"


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The first violation at one source line in one process."""

    kind: str
    kernel: str
    file: str
    line: int
    text: str
    program: tuple[int, int, int] | None  # None: the line launched the kernel
    headline: str
    details: tuple[str, ...]
    pid: int
    seconds: float  # since the process launched its first kernel
    is_warning: bool = False  # it cannot happen on a card as the program is set up

    @classmethod
    def from_violation(cls, violation: Violation, kernel: str, seconds: float) -> KernelReport:
        place = violation.location
        return cls(
            type(violation).__name__,
            kernel,
            place.file if place else "",
            place.line if place else 0,
            place.text if place else "",
            place.program if place else (0, 0, 0),
            violation.headline,
            violation.details,
            os.getpid(),
            round(seconds, 3),
            violation.is_warning,
        )

    @property
    def summary_line(self) -> str:
        program = "" if self.program is None else f", program {self.program}"
        return f"{self.headline} ({self.file}:{self.line}{program})"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}  {self.text}"
        program = () if self.program is None else (f"program {self.program}",)
        return "\n  ".join([self.headline, where, *program, *self.details])


@dataclass(slots=True)
class TracedLaunches:
    """What the checks of launches saw, in all processes (`graphs`, `streams`)."""

    processes: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = self.counts
        words = (
            f"followed {format_count(counts['launches'], 'launch')}, "
            f"{counts['captured']} of them into {format_count(counts['graphs'], 'graph')}, "
            f"{format_count(counts['replays'], 'replay')} and "
            f"{format_count(counts['allocations'], 'allocation')}"
        )
        if counts["unknown"]:
            words += f"; {counts['unknown']} launches may access more than their arguments say"
        return words


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """The reports and launches of all processes."""

    reports: list[KernelReport]
    kernels: dict[str, KernelSummary]  # by the name, with the place where two have the same
    processes: int
    unchecked_libraries: list[str] = field(default_factory=list)  # libraries with GPU code
    failures: list[str] = field(default_factory=list)  # of the processes' reporters
    traced: TracedLaunches | None = None  # None: no process had the checks of launches
    # Launches of all libraries by the kernel's mangled name, and why processes did not count them.
    all_launches: Counter[str] = field(default_factory=Counter)
    uncounted: list[str] = field(default_factory=list)

    @property
    def share_of_all(self) -> float | None:
        """The checked launches' share of those of all libraries.

        None if a process did not count them, as its checked launches are not among them.
        """
        total = self.all_launches.total()
        if self.uncounted or not total:
            return None
        return self.checked_launches / max(total, self.checked_launches)

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels.values())

    @property
    def checked_launches(self) -> int:
        return sum(kernel.checked_launches for kernel in self.kernels.values())

    @property
    def checked_share(self) -> float:
        """The checked launches' share of all."""
        return self.checked_launches / self.launches if self.launches else 0.0

    def __str__(self) -> str:
        """Return 'checked 5 launches of 2 kernels', or how many of them, and their share."""
        kernels, launches = len(self.kernels), self.launches
        if self.checked_launches == launches:
            return (
                f"checked {format_count(launches, 'launch')} of {format_count(kernels, 'kernel')}"
            )
        checked = kernels - len(self.refusals)
        return (
            f"checked {self.checked_launches} of {format_count(launches, 'launch')} "
            f"({self.checked_share:.1%}), {checked} of {format_count(kernels, 'kernel')}"
        )

    @property
    def refusals(self) -> dict[str, str]:
        """The reasons of the kernels that ran unchecked, in one launch at least."""
        return {
            name: each.describe_refusals() for name, each in self.kernels.items() if each.refusals
        }

    @property
    def dropped_reports(self) -> dict[str, int]:
        """Reports of violations that have no launch to show, by kernel."""
        return {
            name: each.dropped_reports
            for name, each in self.kernels.items()
            if each.dropped_reports
        }

    @property
    def failure(self) -> str:
        """Why this is no proof of anything good; "" if launches were checked and none is wrong."""
        if self.reports:
            return self.reports[0].summary_line
        if dropped := self.dropped_reports:
            name, count = next(iter(dropped.items()))
            return f"{name} has {format_count(count, 'report')} of launches no longer known"
        return self.reporter_failure or self.silence

    @property
    def reporter_failure(self) -> str:
        return f"the reporter of checks failed: {self.failures[0]}" if self.failures else ""

    @property
    def silence(self) -> str:
        """Why nothing was checked; "" if a launch was."""
        if self.traced is not None and not self.traced.counts["launches"]:
            return "no process launched anything on a GPU, so the check says nothing"
        if self.checked_launches or (self.traced is not None and not self.kernels):
            return ""
        if not self.launches:
            return "no process launched a Triton kernel, so the check says nothing"
        reasons: Counter[str] = Counter()
        for kernel in self.kernels.values():
            reasons.update(kernel.refusals)
        listed = "; ".join(
            f"{reason} ({format_count(count, 'launch')})" for reason, count in reasons.most_common()
        )
        return (
            f"none of {format_count(self.launches, 'launch')} was checked, so the check says "
            f"nothing: {listed}"
        )


def request_checks(environment: dict[str, str], checks: str, folder: Path) -> None:
    """Have the processes of an environment check their kernels and report to a folder."""
    shutil.rmtree(folder, ignore_errors=True)  # an earlier run's reports
    environment[CHECKS_VARIABLE], environment[FOLDER_VARIABLE] = checks, str(folder)


class ReportWriter:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._start = str(folder / str(os.getpid()))  # of the files' names, in a fork too
        self._written: dict[str, str] = {}
        self._failures: set[str] = set()

    def write_report(self, report: KernelReport) -> None:
        with self._get_file("reports").open("a") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    def write_failure(self, failure: str) -> bool:
        """Write a failure of the reporter, once; return whether it is a new one."""
        if failure in self._failures:
            return False
        with self._get_file("failures").open("a") as file:
            file.write(json.dumps(failure) + "\n")
        self._failures.add(failure)
        return True

    def write_kernels(self, summaries: KernelSummaries) -> None:
        self._write_if_changed("kernels", summaries.to_data())

    def write_launches(self, counts: dict[str, int]) -> None:
        self._write_if_changed("launches", counts)

    def write_all_launches(self, counts: dict[str, int], failure: str) -> None:
        self._write_if_changed("all", {"counts": counts, "failure": failure})

    def write_libraries(self, names: list[str]) -> None:
        self._write_if_changed("others", names)

    def _write_if_changed(self, kind: str, value: Any) -> None:
        text = json.dumps(value)
        if text != self._written.get(kind):
            self._written[kind] = text
            write_atomically(self._get_file(kind), text)

    def _get_file(self, kind: str) -> Path:
        return Path(f"{self._start}.{kind}")


def read_reports(folder: Path, of_launches: bool = False) -> CheckSummary:
    """Read the files of all processes; `of_launches`: the checks of launches were requested."""
    summaries = KernelSummaries()
    files = sorted(folder.glob("*.kernels"))
    for file in files:
        for data in json.loads(file.read_text()):
            one = KernelSummary(**data)
            summaries.get_summary(one.name, one.place).merge(one)
    libraries = {name for file in folder.glob("*.others") for name in json.loads(file.read_text())}
    failures = [
        f"pid {file.stem}: {json.loads(line)}"
        for file in sorted(folder.glob("*.failures"))
        for line in file.read_text().splitlines()
    ]
    traced = TracedLaunches()
    for file in folder.glob("*.launches"):
        traced.processes += 1
        traced.counts.update(json.loads(file.read_text()))
    all_launches: Counter[str] = Counter()
    uncounted = []
    for file in sorted(folder.glob("*.all")):
        data = json.loads(file.read_text())
        all_launches.update(data["counts"])
        uncounted += [f"pid {file.stem}: {data['failure']}"] if data["failure"] else []
    reports = sorted(_iter_reports(folder), key=lambda report: report.seconds)
    kernels = label_kernels(summaries)
    return CheckSummary(
        reports,
        kernels,
        len(files),
        sorted(libraries),
        failures,
        traced if traced.processes or of_launches else None,
        all_launches,
        uncounted,
    )


def _iter_reports(folder: Path) -> Iterator[KernelReport]:
    for file in folder.glob("*.reports"):
        for line in file.read_text().splitlines():
            data = json.loads(line)
            data["details"] = tuple(data["details"])
            data["program"] = data["program"] and tuple(data["program"])
            yield KernelReport(**data)
