"""A guard that fails by chance, at any rate, is called proven at most once in a hundred runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import child_process
from harness.core.outcomes import Outcome, Verdict
from harness.guards import profiles, repeat, verdicts
from harness.guards.verdicts import REQUIRED_FAILURES, REQUIRED_PASSES
from harness.store.prove.values import CellResult, RepeatMode, SideRepetition, SideResult

ONCE_IN_A_HUNDRED = Fraction(1, 100)
RATES = [Fraction(n, 200) for n in range(201)]
Fails = Callable[[str], bool]  # whether this run of a side fails


def judge_guard(way: RepeatMode, fails: Fails) -> CellResult:
    """Judge a guard by the real decisions, from its first run on."""
    cell = CellResult("g", "t", "1.0", "cpu", "fixed")
    while missing := verdicts.find_missing_sides(cell):
        add_run(cell, random.choice(missing), way, fails)
    verdicts.judge_cell(cell)
    return cell


def add_run(cell: CellResult, name: str, way: RepeatMode, fails: Fails) -> None:
    """Add a run as the worker does: an example that is known comes before a first search."""

    def take_outcome() -> Outcome:
        return Outcome.FAILED if fails(name) else Outcome.PASSED

    if name in cell.sides:
        cell.sides[name].again.append(SideRepetition(take_outcome(), "by chance"))
        return
    ahead = way is RepeatMode.EXAMPLE and name == "fixed" and "buggy" in cell.sides
    again = [SideRepetition(take_outcome(), "by chance")] if ahead else []
    # A search that passes has no example yet.
    own_way = RepeatMode.SEARCH if name == "fixed" and way is not RepeatMode.WHOLE else way
    cell.sides[name] = SideResult(name, take_outcome(), reach=1, way=own_way, again=again)


@functools.cache
def ways_to_be_proven(way: RepeatMode, seed: int = 0) -> dict[tuple[int, int], int]:
    """Count the proven sequences that the decisions allow, by their failures and passes."""
    found: dict[tuple[int, int], int] = {}

    class More(Exception):
        pass

    def follow(outcomes: tuple[bool, ...]) -> None:
        left = iter(outcomes)

        def fails(_: str) -> bool:
            for each in left:
                return each
            raise More

        try:
            state = random.getstate()
            random.seed(seed)  # the order of the sides is the same along all of one branch
            cell = judge_guard(way, fails)
        except More:
            follow((*outcomes, True))
            follow((*outcomes, False))
        else:
            if cell.verdict is Verdict.PROVEN:
                key = sum(outcomes), len(outcomes) - sum(outcomes)
                found[key] = found.get(key, 0) + 1
        finally:
            random.setstate(state)

    follow(())
    return found


SEEDS = range(12)  # orders that begin with either side


def compute_chance(way: RepeatMode, rate: Fraction, seed: int) -> Fraction:
    ends = ways_to_be_proven(way, seed).items()
    return sum(
        (times * rate**fails * (1 - rate) ** passes for (fails, passes), times in ends), Fraction()
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", [RepeatMode.WHOLE, RepeatMode.EXPLICIT])
def test_no_rate_of_chance_is_proven_more_than_once_in_a_hundred(
    way: RepeatMode, seed: int
) -> None:
    """Exactly, over every sequence of outcomes; the worst rate is four of seven."""
    assert ways_to_be_proven(way, seed) == {(REQUIRED_FAILURES, REQUIRED_PASSES): 1}
    worst = Fraction(REQUIRED_FAILURES, REQUIRED_FAILURES + REQUIRED_PASSES)
    chances = [compute_chance(way, rate, seed) for rate in RATES]
    assert compute_chance(way, worst, seed) == Fraction(4**4 * 3**3, 7**7)
    assert max(chances) <= compute_chance(way, worst, seed) <= ONCE_IN_A_HUNDRED
    # It rises up to the worst rate and falls after it: no rate between two of these is worse.
    for (low, before), (_, after) in pairwise(zip(RATES, chances, strict=True)):
        assert before <= after or low >= worst - Fraction(1, 200)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", [RepeatMode.EXAMPLE, RepeatMode.SEARCH])
def test_a_first_pass_over_other_examples_counts_for_nothing(way: RepeatMode, seed: int) -> None:
    """The applied side may never have met the failing example: it then passes for certain."""
    proven = ways_to_be_proven(way, seed)
    assert {fails for fails, _ in proven} == {REQUIRED_FAILURES}
    assert {passes for _, passes in proven} == {REQUIRED_PASSES + 1}
    for rate in RATES:
        by_chance = sum(
            times * rate**fails * (1 - rate) ** (passes - 1)  # the first pass is certain
            for (fails, passes), times in proven.items()
        )
        assert by_chance <= ONCE_IN_A_HUNDRED


@pytest.mark.parametrize(
    ("way", "guess"),
    [
        (RepeatMode.WHOLE, Fraction(1, 35)),
        (RepeatMode.EXAMPLE, Fraction(1, 35)),
        (RepeatMode.EXPLICIT, Fraction(3, 70)),
        (RepeatMode.SEARCH, Fraction(1, 35)),
    ],
)
def test_no_order_of_a_proof_s_runs_is_likelier_than_the_page_says(
    way: RepeatMode, guess: Fraction
) -> None:
    """What counts its runs somewhere has to guess the order of their sides."""
    orders: dict[tuple[str, ...], Fraction] = {}

    def follow(order: tuple[str, ...], likelihood: Fraction) -> None:
        cell = CellResult("g", "t", "1.0", "cpu", "fixed")
        for name in order:
            add_run(cell, name, way, lambda side: side == "buggy")
        missing = verdicts.find_missing_sides(cell)
        if not missing:
            orders[order] = likelihood
        for name in dict.fromkeys(missing):
            share = Fraction(missing.count(name), len(missing))
            follow((*order, name), likelihood * share)

    follow((), Fraction(1))
    assert sum(orders.values()) == 1
    assert max(orders.values()) == guess


@pytest.mark.parametrize(
    ("fixed", "buggy", "says"),
    [
        ("p", "fp", "it failed 1 of 2 times with the fix reverted and 0 of 1 with the fix applied"),
        (
            "pf",
            "fff",
            "it failed 3 of 3 times with the fix reverted and 1 of 2 with the fix applied",
        ),
    ],
)
def test_a_flaky_cell_says_how_often_it_failed(fixed: str, buggy: str, says: str) -> None:
    cell = judge_outcomes(fixed, buggy)
    assert cell.verdict is Verdict.FLAKY
    assert says in cell.why


def judge_outcomes(fixed: str, buggy: str) -> CellResult:
    cell = CellResult("g", "t", "1.0", "cpu", "fixed")
    outcomes = {"p": Outcome.PASSED, "f": Outcome.FAILED, "l": Outcome.LOST}
    for name, letters in (("fixed", fixed), ("buggy", buggy)):
        first, *rest = (outcomes[letter] for letter in letters)
        cell.sides[name] = SideResult(
            name,
            first,
            reach=1,
            again=[SideRepetition(each, "its supervisor ended") for each in rest],
        )
    assert verdicts.find_missing_sides(cell) == []
    verdicts.judge_cell(cell)
    return cell


# Hypothesis


@pytest.mark.usefixtures("smoke_profile")
@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_a_failure_that_hypothesis_reports_was_seen_twice(rate: float) -> None:
    """So a test that fails by chance is reported no more often than its rate, in any length."""
    drawn = random.Random(f"hypothesis {rate}")
    reports = 0
    times = 80

    for seed in range(times):

        @hypothesis.seed(seed)
        @given(number=st.integers())
        def by_chance(number: int) -> None:
            assert drawn.random() >= rate

        with contextlib.suppress(hypothesis.errors.Flaky), profiles.extend_search(by_chance):
            try:
                by_chance()
            except AssertionError:
                reports += 1
    assert reports / times < rate + 4 * (rate * (1 - rate) / times) ** 0.5


def test_addresses_of_new_objects_are_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toggle changes what was allocated before a test, and forks would all repeat that."""
    for name in ("numpy.random", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    repeat.seed_random_sources(0)  # as a worker that runs tests in its own process

    def list_addresses(seed: int) -> list[int]:
        repeat.seed_random_sources(seed)
        objects = [object(), [], {}, {seed}, Path("x"), 0.5 + seed, bytes(99), bytes(400)]
        return [*map(id, objects), len(gc.get_objects())]

    addresses = [
        child_process.call_in_fork(functools.partial(list_addresses, seed)) for seed in range(24)
    ]
    for numbers in zip(*addresses, strict=True):
        assert len(set(numbers)) >= 8, numbers
