"""The search itself, over simulated symptoms: nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.runs.bisect.halving_search import HalvingSearch
from harness.runs.bisect.search_questions import SearchAnswer as Answer
from harness.runs.bisect.search_questions import SearchQuestion as Question
from harness.runs.bisect.search_questions import SearchResult, ToggleIds
from harness.runs.bisect.search_questions import ToggleUniverse as Universe

Symptom = Callable[[Question], Answer]


def drive_search(search: HalvingSearch, symptom: Symptom) -> tuple[SearchResult, list[Question]]:
    questions: list[Question] = []
    generator = search.search()
    try:
        batch = next(generator)
        while True:
            assert all(search.universe.can_combine(question.toggles) for question in batch)
            questions += batch
            batch = generator.send([symptom(question) for question in batch])
    except StopIteration as stopped:
        return stopped.value, questions


def fail_with_any(*sets: Iterable[str]) -> Symptom:
    causes = [frozenset(one) for one in sets]
    return lambda question: Answer(any(cause <= question.toggles for cause in causes))


def make_names(count: int) -> tuple[str, ...]:
    return tuple(f"t{i}" for i in range(count))


def keep_smallest(sets: list[ToggleIds]) -> list[ToggleIds]:
    return [s for s in sets if not any(other < s for other in sets)]


@pytest.mark.parametrize("jobs", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 20, 33])
def test_one_culprit_takes_log2_questions_and_its_proof(count: int, jobs: int) -> None:
    most = 0
    for culprit in make_names(count):
        found, asked = drive_search(
            HalvingSearch(Universe(make_names(count)), jobs), fail_with_any({culprit})
        )
        assert found.minimal_sets == [{culprit}]
        assert not found.cannot_tell
        assert found.others_show_symptom is False
        proof = [question.toggles for question in asked if question.why == "proof"]
        assert {culprit} in proof
        assert count == 1 or set(make_names(count)) - {culprit} in proof
        most = max(most, len(asked))
    assert most <= math.ceil(math.log2(count)) + 2  # and one more, before it, with nothing applied


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_acts_together_the_smallest_set_is_found(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    several = st.frozensets(st.sampled_from(make_names(count)), min_size=1, max_size=4)
    causes = keep_smallest(data.draw(st.lists(several, min_size=1, max_size=4, unique=True)))
    jobs, every = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    found, _ = drive_search(
        HalvingSearch(Universe(make_names(count)), jobs, every), fail_with_any(*causes)
    )
    assert not found.cannot_tell
    if every:
        assert set(found.minimal_sets) == set(causes)
        assert found.others_show_symptom is False
    else:
        assert len(found.minimal_sets) == 1
        assert found.minimal_sets[0] in causes
        assert len(found.minimal_sets[0]) == min(map(len, causes))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_what_clashes_is_never_put_together(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 10))
    pairs = st.frozensets(st.sampled_from(make_names(count)), min_size=2, max_size=2)
    universe = Universe(make_names(count), data.draw(st.frozensets(pairs, max_size=6)))
    causes = [frozenset({data.draw(st.sampled_from(make_names(count)))})]
    pair = data.draw(st.one_of(st.none(), pairs))
    if pair is not None and universe.can_combine(pair):
        causes = [pair]
    # `drive` ensures that each question fits
    found, _ = drive_search(
        HalvingSearch(universe, data.draw(st.integers(1, 4))), fail_with_any(*causes)
    )
    assert found.minimal_sets == causes
    assert not found.cannot_tell


def test_no_toggle_explains_it() -> None:
    found, asked = drive_search(HalvingSearch(Universe(make_names(20))), lambda _: Answer(False))
    assert found.minimal_sets == []
    assert not found.cannot_tell
    assert {frozenset({name}) for name in make_names(20)} <= {
        question.toggles for question in asked
    }
    found, _ = drive_search(HalvingSearch(Universe(make_names(8))), lambda _: Answer(None))
    assert found.minimal_sets == []
    assert "gave no answer" in found.cannot_tell


def test_a_culprit_that_others_hide_is_found() -> None:
    def answer_unless_hidden(question: Question) -> Answer:
        return Answer("t3" in question.toggles and "t11" not in question.toggles)

    found, _ = drive_search(HalvingSearch(Universe(make_names(16))), answer_unless_hidden)
    assert found.minimal_sets == [{"t3"}]


def test_sets_that_say_nothing_are_gone_around() -> None:
    for culprit in make_names(16):

        def silent(question: Question, culprit: str = culprit) -> Answer:
            if "t5" in question.toggles and len(question.toggles) > 1:
                return Answer(None)
            return Answer(culprit in question.toggles)

        found, _ = drive_search(HalvingSearch(Universe(make_names(16))), silent)
        assert found.minimal_sets == [{culprit}], culprit


def test_code_that_never_ran_is_suspected_last() -> None:
    def answer_with_code_run(question: Question) -> Answer:
        return Answer("t9" in question.toggles, question.toggles & {"t9", "t1"})

    found, asked = drive_search(HalvingSearch(Universe(make_names(64))), answer_with_code_run)
    assert found.minimal_sets == [{"t9"}]
    assert len(asked) < 6

    def unseen(question: Question) -> Answer:
        return Answer("t9" in question.toggles, question.toggles & {"t1", "t2", "t3"})

    found, _ = drive_search(HalvingSearch(Universe(make_names(64))), unseen)
    assert found.minimal_sets == [{"t9"}]


def test_an_outcome_that_changes_by_itself_is_told() -> None:
    heard: list[ToggleIds] = []

    def once(question: Question) -> Answer:
        heard.append(question.toggles)
        return Answer("t0" in question.toggles and heard.count(question.toggles) == 1)

    found, _ = drive_search(HalvingSearch(Universe(make_names(2))), once)
    assert "came out in two ways" in found.cannot_tell


@pytest.mark.parametrize("failing", range(1, 8))  # an undisturbed search asks 7 questions
def test_one_answer_that_differs_is_no_finding(failing: int) -> None:
    """Whichever of the runs fails by accident, no culprit is named to be the only one."""
    questions: list[Question] = []

    def fail_once(question: Question) -> Answer:
        questions.append(question)
        return Answer(len(questions) == failing)

    search = HalvingSearch(Universe(make_names(4)), confirm_twice=True)
    found, _ = drive_search(search, fail_once)
    assert len(questions) >= failing
    assert not found.minimal_sets or found.cannot_tell or found.others_show_symptom is not False
