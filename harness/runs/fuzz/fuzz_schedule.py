"""The schedule of slices: the order of the tests, and the seconds of each.

Each test has a clock that runs during its slices. The clock runs faster the longer the test has had
no news: no new line, no better target, no new failure. The test whose clock is furthest behind is
next, so tests with news get more time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.core.added_counts import add_counts
from harness.runs.fuzz.messages import FuzzTask, TimeSliceResult
from harness.store.fuzz.values import FuzzTestResult

MIN_SLICE_SECONDS, MAX_SLICE_SECONDS = 0.5, 15.0  # limits of a slice
MIN_ROUNDS = 3  # slices of each test, if the budget allows
MAX_IDLE_SLICES = 4  # slices without news, after which a clock runs no faster


@dataclass
class FuzzTestState:
    """The progress of a test of one release."""

    task: FuzzTask
    test_result: FuzzTestResult
    clock: float = 0.0
    idle_slices: int = 0
    running_slices: int = 0
    covered_lines: dict[str, set[int]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return not self.test_result.left_out and not self.test_result.exhausted

    def add_result(self, slice_result: TimeSliceResult) -> None:
        """Add the time and the news of a slice."""
        news = bool(slice_result.failures)
        for file, lines in slice_result.covered_lines.items():
            known = self.covered_lines.setdefault(file, set())
            news |= not known.issuperset(lines)
            known.update(lines)
        for label, value in slice_result.targets.items():
            best = self.test_result.targets.get(label)
            if best is None or value > best:
                self.test_result.targets[label] = value
                news = True
        self.idle_slices = 0 if news else self.idle_slices + 1
        self.test_result.examples += slice_result.examples
        self.test_result.exhausted |= slice_result.exhausted
        self.test_result.stand_ins = add_counts(self.test_result.stand_ins, slice_result.stand_ins)
        self.test_result.compile_seconds += slice_result.compile_seconds
        self.charge_time(slice_result.seconds)

    def charge_time(self, seconds: float) -> None:
        self.test_result.seconds += seconds
        self.test_result.slices += 1
        self.clock += seconds * (1 + min(self.idle_slices, MAX_IDLE_SLICES))


class FuzzSchedule:
    """The schedule of one release's tests."""

    def __init__(self, states: list[FuzzTestState], jobs: int, seconds: float) -> None:
        self.states = states
        wanted = max(1, sum(state.is_open for state in states)) * MIN_ROUNDS
        self.slice_seconds = min(MAX_SLICE_SECONDS, max(MIN_SLICE_SECONDS, seconds * jobs / wanted))

    def pick_next(self) -> FuzzTestState | None:
        """Return the next test. Two workers share a test only if there is no other."""
        waiting = [state for state in self.states if state.is_open]
        if not waiting:
            return None
        return min(waiting, key=lambda state: (state.running_slices, state.clock))
