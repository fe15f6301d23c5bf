"""How many launches of each kernel were checked, and why the others were not.

Invariant: what a launch adds stays. A launch that ran unchecked counts under its reason, whatever
the launches behind it do, and one that a graph captured counts as captured: the graph replays it
unchecked. Example: of five launches of `fill` the second, in a capture, found no room for its
reports: `launches` 5, `refusals` and `captured_refusals` {"there was no room for its reports": 1}.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

NO_SHADOW_MEMORY = "races: a graph captured it before there was memory to remember accesses"
_LOCK = threading.Lock()  # held while a summary changes or is read: a thread writes them to disk


@dataclass(slots=True)
class KernelSummary:
    """A kernel's launches; two kernels of one name differ by the place of their source."""

    name: str
    place: str = ""  # file:line
    launches: int = 0
    refusals: dict[str, int] = field(default_factory=dict)  # unchecked launches, by the reason
    captured_refusals: dict[str, int] = field(default_factory=dict)  # those in a graph's capture
    skipped_checks: dict[str, int] = field(default_factory=dict)  # launches without one check
    unchecked: dict[str, int] = field(default_factory=dict)  # accesses, by the reason
    dropped_reports: int = 0  # reports of violations in launches that are no longer known
    further_reports: int = 0  # reports of lines that have as many as are recorded
    compilations: int = 0  # by Triton, with checks
    compile_seconds: float = 0.0

    @property
    def checked_launches(self) -> int:
        return self.launches - sum(self.refusals.values())

    def count_launches(self, count: int = 1) -> None:
        with _LOCK:
            self.launches += count

    def count_refusal(self, reason: str, captured: bool) -> None:
        """Count the last launch as one that ran unchecked."""
        with _LOCK:
            _add_counts(self.refusals, {reason: 1})
            if captured:
                _add_counts(self.captured_refusals, {reason: 1})

    def count_skipped_check(self, reason: str) -> None:
        with _LOCK:
            _add_counts(self.skipped_checks, {reason: 1})

    def count_compilations(self, count: int, seconds: float) -> None:
        with _LOCK:
            self.compilations += count
            self.compile_seconds += seconds

    def merge_unchecked_accesses(self, accesses: dict[str, int]) -> None:
        """Keep the most unchecked accesses that any compiled form of the kernel has."""
        with _LOCK:
            for reason, count in accesses.items():
                self.unchecked[reason] = max(count, self.unchecked.get(reason, 0))

    def merge(self, other: KernelSummary) -> None:
        """Add the launches of another process."""
        self.launches += other.launches
        self.dropped_reports += other.dropped_reports
        self.further_reports += other.further_reports
        self.compilations += other.compilations
        self.compile_seconds += other.compile_seconds
        _add_counts(self.refusals, other.refusals)
        _add_counts(self.captured_refusals, other.captured_refusals)
        _add_counts(self.skipped_checks, other.skipped_checks)
        self.merge_unchecked_accesses(other.unchecked)

    def describe_refusals(self) -> str:
        """Return the reasons, with the number of launches if others were checked or captured."""
        words = []
        for reason, count in self.refusals.items():
            captured = self.captured_refusals.get(reason, 0)
            graphs = f" ({captured} captured in a graph, which replays it unchecked)"
            if captured or count < self.launches:
                reason = f"{count} of {self.launches} launches{graphs * bool(captured)}: {reason}"
            words.append(reason)
        return "; ".join(words)


class KernelSummaries:
    """The summaries of one process."""

    def __init__(self) -> None:
        self._summaries: dict[tuple[str, str], KernelSummary] = {}

    def count_launch(self, name: str, place: str) -> KernelSummary:
        summary = self.get_summary(name, place)
        summary.count_launches()
        return summary

    def get_summary(self, name: str, place: str) -> KernelSummary:
        return self._summaries.setdefault((name, place), KernelSummary(name, place))

    def __iter__(self) -> Iterator[KernelSummary]:
        return iter(list(self._summaries.values()))

    def to_data(self) -> list[dict[str, Any]]:
        with _LOCK:
            return [asdict(summary) for summary in self]


def find_place(function: Any) -> str:
    """Return the file and line of a kernel's source; "" of one that has no code."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def label_kernels(summaries: Iterable[KernelSummary]) -> dict[str, KernelSummary]:
    """Return the summaries by name; where two kernels have one name, with the place of each."""
    listed = list(summaries)
    names = [summary.name for summary in listed]
    return {
        summary.name
        if names.count(summary.name) == 1
        else f"{summary.name} ({summary.place})": summary
        for summary in listed
    }


def _add_counts(total: dict[str, int], counts: dict[str, int]) -> None:
    for reason, count in counts.items():
        total[reason] = total.get(reason, 0) + count
