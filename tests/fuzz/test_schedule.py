"""Who is next, and for how long."""

from __future__ import annotations

from harness.fuzz.schedule import LONGEST, SHORTEST, Schedule, State
from harness.fuzz.values import Found, Sliced, Tally, Task


def states(count: int) -> list[State]:
    return [State(Task(n, f"t{n}"), Tally(f"t{n}", "1.0")) for n in range(count)]


def sliced(lines: int = 0, target: float = 0.0, found: int = 0, seconds: float = 1.0) -> Sliced:
    failures = [Found("E", "here", "", "", [], "")] * found
    return Sliced(10, seconds, {}, {"x": target}, {"f": list(range(lines))}, failures)


def turns(schedule: Schedule, slices: int, grows: str) -> dict[str, int]:
    """How often each test is next, where one of them grows in its own way and the others do not."""
    counted = {state.test.name: 0 for state in schedule.states}
    for number in range(1, slices + 1):
        state = schedule.next()
        assert state is not None
        counted[state.test.name] += 1
        news = number if state.test.name == "t0" else 0
        news_of = {"lines": sliced(lines=news), "target": sliced(target=news)}
        state.add(news_of.get(grows, sliced()))
    return counted


def test_tests_that_are_alike_take_turns() -> None:
    assert turns(Schedule(states(4), 1, 60), 40, "none") == {f"t{n}": 10 for n in range(4)}


def test_one_whose_lines_still_grow_has_more_turns() -> None:
    counted = turns(Schedule(states(4), 1, 60), 80, "lines")
    assert counted["t0"] > 3 * counted["t1"] > 0


def test_one_whose_targets_still_grow_has_more_turns() -> None:
    counted = turns(Schedule(states(4), 1, 60), 80, "target")
    assert counted["t0"] > 3 * counted["t1"] > 0


def test_a_failure_is_news() -> None:
    first, second = states(2)
    for state in (first, second):
        state.add(sliced(lines=1))
    first.add(sliced(found=1))
    second.add(sliced())
    assert (first.without_news, second.without_news) == (0, 1)
    assert first.clock < second.clock


def test_one_that_is_exhausted_or_left_out_has_no_turn() -> None:
    first, second, third = states(3)
    first.tested.exhausted = True
    second.tested.left_out = "it draws no examples"
    schedule = Schedule([first, second, third], 1, 60)
    assert schedule.next() is third
    third.tested.exhausted = True
    assert schedule.next() is None


def test_two_workers_share_a_test_only_if_there_is_no_other() -> None:
    first, second = states(2)
    schedule = Schedule([first, second], 2, 60)
    first.running = 1
    first.clock, second.clock = 0.0, 100.0
    assert schedule.next() is second
    assert Schedule([first], 2, 60).next() is first


def test_a_slice_is_as_long_as_lets_each_test_have_three() -> None:
    assert Schedule(states(10), 1, 60).slice == 2
    assert Schedule(states(10), 2, 60).slice == 4
    assert Schedule(states(1), 2, 36000).slice == LONGEST
    assert Schedule(states(500), 1, 10).slice == SHORTEST
