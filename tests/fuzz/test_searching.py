"""The engine of a slice: its climbs towards targets, its database, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase

from harness.runs.fuzz import search_targets
from harness.runs.fuzz.messages import TimeSlice
from harness.runs.fuzz.search_engine import use_fuzz_engine

pytestmark = pytest.mark.usefixtures("smoke_profile")


def draw_values(
    body: Callable[[Any], None],
    strategy: st.SearchStrategy[Any],
    seconds: float = 60,
    most: int = 60,
    database: ExampleDatabase | None = None,
) -> list[Any]:
    """Return the values that a slice of a test draws."""
    values: list[Any] = []

    @settings(
        max_examples=most,
        database=database,
        deadline=None,
        phases=(Phase.reuse, Phase.generate, Phase.target),
        suppress_health_check=tuple(HealthCheck),
    )
    @hypothesis.seed(1)
    @given(value=strategy)
    def test(value: Any) -> None:
        values.append(value)
        body(value)

    until = time.monotonic() + seconds
    time_slice = TimeSlice(
        test_number=0, seed=1, memory=0, generate_until=until, shrink_until=until + 60, end_after=60
    )
    with use_fuzz_engine(time_slice):
        test()
    return values


def report_nothing(value: Any) -> None:
    """A test without a target."""


def test_the_first_example_is_at_the_upper_end_and_later_ones_are_of_all_kinds() -> None:
    strategy = st.tuples(
        st.integers(3, 9), st.sampled_from("abc"), st.booleans(), st.lists(st.just(1), max_size=5)
    )
    assert draw_values(report_nothing, strategy)[0] == (9, "c", True, [1] * 5)
    wide = st.tuples(st.integers(0, 10**6), st.sampled_from("abc"))
    values = draw_values(report_nothing, wide, most=200)
    assert sum(size == 10**6 for size, _ in values[:6]) >= 3
    assert len({kind for _, kind in values[:6]}) > 1
    assert sum(10 < size < 10**6 - 10 for size, _ in values) > 50


def test_a_list_without_an_end_ends() -> None:
    (first, *_) = draw_values(report_nothing, st.lists(st.integers(0, 5)), most=5)
    assert 10 < len(first) < 1000


def test_bounds_hold() -> None:
    strategy = st.integers(7, 7) | st.integers(min_value=100) | st.integers(max_value=-5)
    values = draw_values(report_nothing, strategy)
    assert [value for value in values if not (value == 7 or value >= 100 or value <= -5)] == []


def test_it_climbs_towards_a_target_that_chance_does_not_reach() -> None:
    def aim(value: int) -> None:
        hypothesis.target(-abs(value - 777_777), label="nearness")

    assert 777_777 in draw_values(aim, st.integers(0, 10**7), most=600)
    assert 777_777 not in draw_values(report_nothing, st.integers(0, 10**7), most=600)


def test_the_database_keeps_the_best_passing_example_of_each_target() -> None:
    def distances(value: tuple[int, int]) -> dict[str, int]:
        return {"low": -abs(value[0] - 333_333), "high": -abs(value[1] - 777_777)}

    def aim(value: tuple[int, int]) -> None:
        for label, distance in distances(value).items():
            hypothesis.target(distance, label=label)

    def best(values: list[Any]) -> dict[str, int]:
        return {
            label: max(distances(value)[label] for value in values) for label in ("low", "high")
        }

    strategy = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
    database = InMemoryExampleDatabase()
    first = draw_values(aim, strategy, most=60, database=database)
    assert 1 <= sum(map(len, database.data.values())) <= 2
    second = draw_values(aim, strategy, most=60, database=database)
    assert best(second[:2]) == best(first)


def test_it_ends_when_the_time_is_over() -> None:
    begun = time.monotonic()
    values = draw_values(lambda value: time.sleep(0.05), st.integers(), seconds=1.0, most=1000)
    assert time.monotonic() - begun > 0.9
    assert 3 < len(values) <= 1.0 / 0.05 + 1


def test_it_runs_one_example_though_all_the_time_has_passed() -> None:
    assert len(draw_values(report_nothing, st.integers(0, 10**6), seconds=-5)) == 1


def test_of_two_values_of_a_target_the_larger_counts() -> None:
    search_targets.begin_example()
    search_targets.maximize_target("fullness", 0.5)
    search_targets.maximize_target("fullness", 0.25)
    search_targets.approach_boundary("page", 15, 16)
    search_targets.approach_boundary("page", 16, 16)
    assert search_targets.end_example() == {"fullness": 0.5, "page": 1.0}
