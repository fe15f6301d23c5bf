"""The choice of the next test, and of its time."""

from __future__ import annotations

import pytest

from harness.runs.fuzz.fuzz_schedule import (
    FuzzSchedule,
    FuzzTestState,
)
from harness.runs.fuzz.messages import FuzzTask, TimeSliceResult
from harness.store.fuzz.values import FoundFailure, FuzzTestResult


def make_states(count: int) -> list[FuzzTestState]:
    return [
        FuzzTestState(FuzzTask(n, f"t{n}"), FuzzTestResult(f"t{n}", "1.0")) for n in range(count)
    ]


def make_slice(
    lines: int = 0, target: float = 0.0, found: int = 0, seconds: float = 1.0
) -> TimeSliceResult:
    failures = [FoundFailure("E", "here", "", "", [], "")] * found
    return TimeSliceResult(10, seconds, {}, {"x": target}, {"f": list(range(lines))}, failures)


def count_turns(schedule: FuzzSchedule, slices: int, grows: str) -> dict[str, int]:
    """Return how often each test is next, if one of them grows in its own way."""
    counted = {state.task.name: 0 for state in schedule.states}
    for number in range(1, slices + 1):
        state = schedule.pick_next()
        assert state is not None
        counted[state.task.name] += 1
        news = number if state.task.name == "t0" else 0
        news_of = {"lines": make_slice(lines=news), "target": make_slice(target=news)}
        state.add_result(news_of.get(grows, make_slice()))
    return counted


def test_tests_that_are_alike_take_turns() -> None:
    assert count_turns(FuzzSchedule(make_states(4), 1, 60), 40, "none") == {
        f"t{n}": 10 for n in range(4)
    }


@pytest.mark.parametrize("grows", ["lines", "target"])
def test_a_test_that_still_grows_has_more_turns(grows: str) -> None:
    counted = count_turns(FuzzSchedule(make_states(4), 1, 60), 80, grows)
    assert counted["t0"] > 3 * counted["t1"] > 0


def test_a_failure_is_news() -> None:
    first, second = make_states(2)
    for state in (first, second):
        state.add_result(make_slice(lines=1))
    first.add_result(make_slice(found=1))
    second.add_result(make_slice())
    assert (first.idle_slices, second.idle_slices) == (0, 1)
    assert first.clock < second.clock


def test_one_that_is_exhausted_or_left_out_has_no_turn() -> None:
    first, second, third = make_states(3)
    first.test_result.exhausted = True
    second.test_result.left_out = "it draws no examples"
    schedule = FuzzSchedule([first, second, third], 1, 60)
    assert schedule.pick_next() is third
    third.test_result.exhausted = True
    assert schedule.pick_next() is None
