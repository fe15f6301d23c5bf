"""What the checks saw of a suite, test by test, and the lines that say so at its end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.core.added_counts import add_counts
from harness.core.wording import format_count

_MAX_LISTED = 12
_MAX_SLOWEST = 5


@dataclass(slots=True)
class TestChecks:
    """The launches of one test, its setup and teardown included; plain values, for a report."""

    __test__ = False  # not a test class
    launches: dict[str, int] = field(default_factory=dict)  # by kernel
    refused_launches: int = 0
    refusals: dict[str, str] = field(default_factory=dict)  # reasons by kernel
    # KernelReports, each with the reason for which the baseline accepts it.
    reports: list[dict[str, Any]] = field(default_factory=list)
    approximations: dict[str, list[str]] = field(default_factory=dict)  # by kernel
    configurations: dict[str, int] = field(default_factory=dict)  # of autotuned kernels
    seconds: dict[str, float] = field(default_factory=dict)  # by kernel, that its programs ran
    stand_ins: dict[str, int] = field(default_factory=dict)  # of the virtual GPU: their calls

    @property
    def checked_launches(self) -> int:
        return sum(self.launches.values()) - self.refused_launches

    @property
    def failing_reports(self) -> list[dict[str, Any]]:
        return [each for each in self.reports if not (each["is_warning"] or each["accepted"])]

    def add_device_refusals(self, messages: Iterable[str]) -> None:
        """Add what the virtual GPU refused in a test that failed, without arguments and places."""
        for message in messages:
            name = re.split(r"\(|,? called at ", message)[0]
            self.refusals[name] = name

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> TestChecks:
        return cls(**data)


class SuiteChecks:
    """All tests of a run."""

    def __init__(self) -> None:
        self.tests: dict[str, TestChecks] = {}
        self.outcomes: dict[str, str] = {}

    @property
    def checked_launches(self) -> int:
        return sum(test.checked_launches for test in self.tests.values())

    @property
    def stand_ins(self) -> dict[str, int]:
        return add_counts(*(test.stand_ins for test in self.tests.values()))

    def list_silent_tests(self) -> list[str]:
        """List the tests that passed without a launch."""
        return [
            name
            for name, test in self.tests.items()
            if not test.launches and self.outcomes.get(name) == "passed"
        ]

    def to_data(self) -> dict[str, Any]:
        return {
            name: {"outcome": self.outcomes.get(name, ""), **test.to_data()}
            for name, test in self.tests.items()
        }

    def describe(self, checks: tuple[str, ...], runs_all_configurations: bool) -> Iterator[str]:
        launching = [test for test in self.tests.values() if test.launches]
        kernels = {name for test in launching for name in test.launches}
        reports = sum(len(test.failing_reports) for test in self.tests.values())
        if self.checked_launches or reports:
            yield (
                f"checked {format_count(self.checked_launches, 'launch')} of"
                f" {format_count(len(kernels), 'kernel')} in {format_count(len(launching), 'test')}"
                f" ({', '.join(checks)}): "
                + (format_count(reports, "report") if reports else "no reports")
            )
        yield from self._describe_harmless()
        yield from self._describe_refusals()
        yield from self._describe_slowest()
        silent = self.list_silent_tests()
        if silent:
            tests = format_count(len(silent), "test")
            yield f"{tests} passed without a launch: {_join_names(silent)}"
        yield from self._describe_deviations(runs_all_configurations)

    def list_reports(self) -> list[dict[str, Any]]:
        return [report for test in self.tests.values() for report in test.reports]

    def _describe_harmless(self) -> Iterator[str]:
        """Name each warning and each accepted report once."""
        lines: dict[str, None] = {}
        for report in self.list_reports():
            place = f"{report['headline']} ({report['file']}:{report['line']})"
            if report["accepted"]:
                lines[f"accepted: {place}: {report['accepted']}"] = None
            elif report["is_warning"]:
                lines[f"warning: {place}"] = None
        yield from lines

    def _describe_slowest(self) -> Iterator[str]:
        seconds: Counter[str] = Counter()
        for test in self.tests.values():
            seconds.update(test.seconds)
        slowest = [(name, time) for name, time in seconds.most_common(_MAX_SLOWEST) if time >= 0.1]
        if slowest:
            yield "slowest kernels: " + ", ".join(f"{name} {time:.1f} s" for name, time in slowest)

    def _describe_refusals(self) -> Iterator[str]:
        tests: dict[str, list[str]] = {}
        for name, test in self.tests.items():
            for reason in test.refusals.values():
                tests.setdefault(reason, []).append(name)
        for reason, names in sorted(tests.items(), key=lambda item: -len(item[1])):
            yield f"refused in {format_count(len(names), 'test')}: {reason}"

    def _describe_deviations(self, runs_all_configurations: bool) -> Iterator[str]:
        approximate: dict[str, set[str]] = {}
        configurations: dict[str, int] = {}
        for test in self.tests.values():
            configurations |= test.configurations
            for kernel, names in test.approximations.items():
                for name in names:
                    approximate.setdefault(name, set()).add(kernel)
        for name, kernels in sorted(approximate.items()):
            yield f"approximate, within CUDA's bounds: {name}, in {_join_names(sorted(kernels))}"
        several = {name: count for name, count in configurations.items() if count > 1}
        if several and not runs_all_configurations:
            named = [f"{name} ({count})" for name, count in sorted(several.items())]
            yield f"only the first autotune configuration ran, of {_join_names(named)}"
        if self.checked_launches:
            yield "products and sums are rounded one by one, where a GPU may fuse them"


def _join_names(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f", and {more} more" if more > 0 else "")
