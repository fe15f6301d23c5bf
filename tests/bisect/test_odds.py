"""Searches for intermittent symptoms, over simulated runs with a seed each."""

from __future__ import annotations

import random

import pytest
from test_halving import make_names

from harness.runs.bisect.bayesian_search import BayesianSearch
from harness.runs.bisect.event_rates import SequentialRateTest
from harness.runs.bisect.search_driver import drive_search
from harness.runs.bisect.search_questions import SearchAnswer as Answer
from harness.runs.bisect.search_questions import SearchQuestion as Question
from harness.runs.bisect.search_questions import SearchResult, ToggleIds
from harness.runs.bisect.search_questions import ToggleUniverse as Universe


def run_search(
    culprits: ToggleIds,
    shows: float,
    noise: float,
    seed: int,
    *,
    count: int = 20,
    causes: bool = True,
    repeat: int = 100,
    **options: bool | int,
) -> tuple[SearchResult, int]:
    """Run one search with these event rates; return its result and the number of runs."""
    chance = random.Random(seed)
    odds = BayesianSearch(
        Universe(make_names(count)),
        repeat,
        0.99,
        toggles_cause_event=causes,
        **options,  # type: ignore[arg-type]
    )
    runs = 0

    def answer(question: Question) -> Answer:
        inside = bool(culprits) and culprits <= question.toggles
        event = chance.random() < (shows if inside == causes else noise)
        return Answer(event == causes)

    def ask(batch: list[Question]) -> list[Answer]:
        nonlocal runs
        runs += len(batch)
        return [answer(question) for question in batch]

    return drive_search(odds.search(), ask), runs


def one_of(count: int, seed: int, size: int = 1) -> ToggleIds:
    return frozenset(random.Random(1000 + seed).sample(make_names(count), size))


@pytest.mark.parametrize(("among", "trials", "most"), [(12, 100, 170), (20, 10, 200)])
def test_a_symptom_in_3_of_10_runs_is_found_surely(among: int, trials: int, most: int) -> None:
    right, total = 0, 0
    for seed in range(trials):
        culprit = one_of(among, seed)
        found, runs = run_search(culprit, 0.3, 0.0, seed, count=among)
        right += found.minimal_sets == [culprit] and not found.cannot_tell
        assert found.cannot_tell or found.minimal_sets == [culprit]
        assert found.confidence is not None
        total += runs
    assert right >= 0.99 * trials
    assert total / trials < most


@pytest.mark.parametrize(
    ("shows", "noise", "causes", "size"),
    [
        (0.3, 0.02, True, 1),
        (0.3, 0.0, False, 1),  # a fix that prevents the event
        (0.9, 0.1, True, 1),
        (1.0, 0.0, True, 1),
        (0.5, 0.0, True, 2),  # two that act together
    ],
)
def test_other_rates_are_told_as_well(shows: float, noise: float, causes: bool, size: int) -> None:
    for seed in range(10):
        culprits = one_of(12, seed, size)
        found, _ = run_search(culprits, shows, noise, seed, count=12, causes=causes, repeat=200)
        assert found.minimal_sets == [culprits], (seed, found)


def test_none_of_them_is_an_answer() -> None:
    for seed in range(10):
        found, _ = run_search(frozenset(), 0.3, 0.0, seed, count=8)
        assert found.minimal_sets == []
        assert not found.cannot_tell
        assert found.least_detectable_rate is not None
        assert found.least_detectable_rate < 0.06


def test_too_few_runs_are_no_answer() -> None:
    for seed in range(10):
        found, runs = run_search(one_of(20, seed), 0.2, 0.0, seed, repeat=5)
        assert runs < 60
        if not found.cannot_tell:
            # "Nothing shows it in most of the runs" is true, and all that can be known.
            assert found.minimal_sets == []
            assert found.least_detectable_rate is not None
            assert found.least_detectable_rate > 0.5


def test_all_that_act_alone_are_found() -> None:
    chance = random.Random(3)
    odds = BayesianSearch(Universe(make_names(10)), 100, 0.99, find_all=True)

    def ask(batch: list[Question]) -> list[Answer]:
        both = {"t2", "t7"}
        return [Answer(bool(both & q.toggles) and chance.random() < 0.5) for q in batch]

    found = drive_search(odds.search(), ask)
    assert sorted(map(sorted, found.minimal_sets)) == [["t2"], ["t7"]]


def test_runs_that_say_nothing_end_in_cannot_tell() -> None:
    odds = BayesianSearch(Universe(make_names(4)), 3, 0.99)
    found = drive_search(odds.search(), lambda batch: [Answer(None)] * len(batch))
    assert "gave no answer" in found.cannot_tell


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.95])
def test_the_proof_errs_no_more_often_than_it_says(rate: float) -> None:
    """Two equal rates, 2000 times: at most 5 % are called different."""
    alarms = 0
    for seed in range(2000):
        chance = random.Random(seed)
        test = SequentialRateTest(0.05)
        for _ in range(200):
            test.add_pair(chance.random() < rate, chance.random() < rate)
            if test.is_decided:
                alarms += 1
                break
    assert alarms / 2000 <= 0.05
