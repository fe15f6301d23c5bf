"""The state of a cell as of the newest night, written through the real store and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated import SimulatedNights, store_letters

from harness.core.outcomes import RunStatus, Verdict
from harness.runs.history.resource_prices import ResourcePrices
from harness.runs.history.values import TimelineState as State
from reports.history import page as history_page


@pytest.fixture
def nights(tmp_path: Path) -> SimulatedNights:
    return SimulatedNights(tmp_path / "runs.sqlite")


@pytest.mark.parametrize(
    ("letters", "state", "since", "good"),
    [
        ("ooo", State.OK, None, None),
        ("oox", State.NEW, 2, 1),
        ("--x", State.NEW, 2, None),
        ("oxx", State.KNOWN, 1, 0),
        ("ox?x", State.KNOWN, 1, 0),
        ("xxx", State.KNOWN, 0, None),
        ("oxo", State.MENDED, 2, None),
        ("oxoo", State.MENDED, 2, None),
        ("oxox", State.BACK, 3, 2),
        ("ofx", State.BACK, 2, 0),
        ("oof", State.FLAKY, None, None),
        ("oxf", State.FLAKY, None, None),
        ("ofo", State.OK, None, None),
        ("ox-", State.NOT_RUN, 1, 0),
        ("ox?", State.NOT_RUN, 1, 0),
        ("oxl", State.NOT_RUN, 1, 0),
        ("oor", State.IDLE, None, None),
        ("oo-", State.IDLE, None, None),
        ("???", State.IDLE, None, None),
        ("occ", State.KNOWN, 1, 0),
    ],
)
def test_nights_give_the_state(
    nights: SimulatedNights, letters: str, state: State, since: int | None, good: int | None
) -> None:
    line = store_letters(nights, letters)
    assert line.state is state
    assert line.since_night == since
    assert (line.last_ok.night_index if line.last_ok else None) == good


def test_an_item_that_was_not_run_is_never_mended(nights: SimulatedNights) -> None:
    assert store_letters(nights, "ox-").state is State.NOT_RUN
    nights.matrix(3, {"a": "?", "beside": "o"})
    assert nights.line(" a").state is State.NOT_RUN
    assert nights.history().green  # nothing failed in the newest night, and the page states it
    nights.matrix(4, {"a": "o", "beside": "o"})
    assert nights.line(" a").state is State.MENDED


def test_first_and_last_seen_failing(nights: SimulatedNights) -> None:
    line = store_letters(nights, "oxoxxo")
    assert (line.first_failed, line.last_failed) == (1, 4)
    assert line.points[1].main_observation.message == "failed: ended failed"


def test_shards_and_jobs_of_one_night_are_one(nights: SimulatedNights) -> None:
    """From 18:00 to 06:00, across midnight; the next night begins at noon."""
    nights.matrix(0, {"a": "o"}, hours=-5)
    nights.matrix(0, {"b": "o"}, hours=0)
    nights.prove(0, {"27460": "o"}, hours=7)
    assert len(nights.history().nights) == 1
    nights.prove(0, {"27460": "o"}, hours=14)
    history = nights.history()
    assert [len(night.runs) for night in history.nights] == [3, 1]
    assert [night.day.isoformat() for night in history.nights] == ["2026-11-01", "2026-11-02"]


def test_failing_and_passing_in_one_night_is_flaky_unless_something_changed(
    nights: SimulatedNights,
) -> None:
    nights.prove(0, {"27460": "x", "27338": "x"})
    nights.prove(0, {"27460": "o"}, hours=1)
    nights.prove(0, {"27338": "o"}, hours=1, commit="bbb")
    assert nights.line("27460 ").state is State.FLAKY
    assert nights.line("27338 ").state is State.OK


def test_a_retried_proof_is_flaky_and_a_collection_problem_a_failure(
    nights: SimulatedNights,
) -> None:
    nights.prove(0, {"27460": "f"})
    line = nights.line("27460 ")
    assert line.state is State.FLAKY
    assert line.informative_points[-1].main_observation.message == "proven: segfault"
    nights.prove(1, {"27460": "o"}, problems=("test_a.py cannot be collected",))
    line = nights.line("collected")
    assert line.state is State.NEW
    message = line.informative_points[-1].main_observation.message
    assert message == "test_a.py cannot be collected"


def test_a_run_that_was_stopped_says_what_it_came_to_and_no_more(nights: SimulatedNights) -> None:
    nights.prove(0, {"27460": "x", "27338": "x"})
    stopped = nights.prove(1, {"27460": "x", "27338": "-"}, status=RunStatus.STOPPED)
    history = nights.history()
    assert [night.stopped for night in history.nights] == [[], [stopped]]
    assert nights.line("27460 ").state is State.KNOWN
    assert nights.line("27338 ").state is State.NOT_RUN


def test_a_night_in_which_nothing_came_to_an_end_is_the_newest(nights: SimulatedNights) -> None:
    nights.prove(0, {"27460": "x"})
    nights.prove(1, {"27460": "-"}, status=RunStatus.STOPPED)
    assert len(nights.history().nights) == 2
    assert nights.line("27460 ").state is State.NOT_RUN


def test_evaluations(nights: SimulatedNights) -> None:
    for night, verdict in enumerate((Verdict.SAME, Verdict.REGRESSED, Verdict.CANNOT_TELL)):
        nights.evaluation(night, verdict)
        states = (State.OK, State.NEW, State.NOT_RUN)
        assert nights.line("tokens needle").state is states[night]
    assert nights.line("tokens needle").first_failed == 1
    nights.evaluation(3, Verdict.FAILS, failure="SIGSEGV")
    assert nights.line("tokens needle").state is State.KNOWN
    assert nights.line("served triton").state is State.NEW
    assert nights.line("served base").state is State.OK


def test_a_failure_of_fuzzing_is_ok_where_it_was_looked_for_and_not_found(
    nights: SimulatedNights,
) -> None:
    nights.fuzz(0)
    nights.fuzz(1, ("0.5.18-padding-AssertionError-1",))
    assert nights.line("AssertionError").state is State.NEW
    nights.fuzz(2, left_out="n/a")
    assert nights.line("AssertionError").state is State.NOT_RUN
    nights.fuzz(3)
    line = nights.line("AssertionError")
    assert line.state is State.MENDED
    assert line.informative_points[-1].main_observation.message == "not found again in 500 examples"


def test_a_fault_that_was_killed_and_survives_is_new(nights: SimulatedNights) -> None:
    nights.mutate(0, {"aaaa": Verdict.KILLED, "bbbb": Verdict.SURVIVED, "cccc": Verdict.EQUAL})
    nights.mutate(1, {"aaaa": Verdict.SURVIVED, "bbbb": Verdict.KILLED, "cccc": Verdict.EQUAL})
    states = {name: nights.line(name).state for name in ("aaaa", "bbbb", "cccc", "whole")}
    assert list(states.values()) == [State.NEW, State.MENDED, State.IDLE, State.OK]
    nights.mutate(2, {"aaaa": Verdict.UNREACHED}, ("test_rows fails without any fault",))
    assert nights.line("aaaa").state is State.NOT_RUN
    assert nights.line("whole").state is State.NEW


def test_two_outcomes_are_no_half(nights: SimulatedNights) -> None:
    """The score is drawn towards zero as long as there are few outcomes."""
    line = store_letters(nights, "ox")
    assert (line.score.differing, line.score.compared) == (1, 1)
    assert line.score.share < 0.1
    assert not line.is_flaky
    line = store_letters(SimulatedNights(nights.file.with_name("other")), "oxoxoxoxoxoxoxoxoxox")
    assert line.score.share > 0.6
    assert line.is_flaky


def test_outcomes_with_other_versions_do_not_count_as_repeats(nights: SimulatedNights) -> None:
    for night, letter in enumerate("oxox"):
        nights.matrix(night, {"a": letter}, commit=f"commit-{night}")
    assert nights.line(" a").score.compared == 0


def test_a_known_bug_of_the_release_is_shown_and_the_history_is_green(tmp_path: Path) -> None:
    nights = SimulatedNights(tmp_path / "runs.sqlite")
    for night in range(2):
        nights.fuzz(night, ("window",), known=("32087",))
    history = nights.history()
    [bug] = history.select_by_state(State.KNOWN_BUG)
    assert history.green
    assert not bug.state.is_new_failure
    page = history_page.render_page(history, ResourcePrices(), "abc")
    assert "0.5.18 has the bug of 32087: assert 1 == 2" in page
    assert "Nothing failed in the night of 2026-11-02 but for 1 known bug" in page


def test_a_known_bug_that_fails_in_another_way_is_new(tmp_path: Path) -> None:
    nights = SimulatedNights(tmp_path / "runs.sqlite")
    nights.fuzz(0, ("window",), known=("32087",))
    nights.fuzz(1, ("window",))
    assert nights.line("window").state is State.NEW
    assert not nights.history().green
