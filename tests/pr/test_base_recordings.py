"""The runs that record what the architectures and deployments of a base run."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from fixture_types import Patch
from touched_runs import (
    COUNT_ROWS,
    LARGE,
    SMALL,
    make_result,
    make_review,
    make_run,
    save_run,
)

from harness.cli import guard_runs
from harness.cli.pr import execution, item_parts, parts
from harness.cli.pr.review import Review
from harness.cli.rehearse import command as rehearse_command
from harness.runs.rehearse.deployment import Deployment
from harness.runs.rehearse.request import RehearseRequest
from harness.store.database import Store
from harness.store.pr.values import PrPart
from harness.store.rehearse.values import RehearsalRun
from harness.workers.release_target import ReleaseTarget


@pytest.fixture
def rehearsals(monkeypatch: Patch, store: Store) -> list[tuple[str, list[str]]]:
    """What was rehearsed: a base and a head whose deployments run `count_rows` in a second."""
    calls: list[tuple[str, list[str]]] = []

    def rehearse(
        target: ReleaseTarget, request: RehearseRequest, deployments: list[Deployment]
    ) -> tuple[RehearsalRun, bool]:
        names = [one.name for one in deployments]
        calls.append((target.name, names))
        functions = COUNT_ROWS if target.requested_as != "silent" else {}
        run = make_run(target.name, [make_result(name, functions, 1.0) for name in names])
        run.id += f"-{len(calls)}"
        run.code = guard_runs.digest_lane_code(target, [])
        save_run(store, run)
        return run, False

    monkeypatch.setattr(rehearse_command, "rehearse_release", rehearse)
    monkeypatch.setattr(guard_runs, "digest_guards_and_toggles", lambda *_: "of today")
    monkeypatch.setattr(Review, "seconds_left", 300.0)
    return calls


def test_a_base_without_runs_runs_all_items_once_and_later_reviews_name_what_they_touch(
    tmp_path: Path, store: Store, rehearsals: list[tuple[str, list[str]]]
) -> None:
    for number in range(2):
        review = make_review(tmp_path / str(number), store, budget=300.0)
        item_parts.rehearse_deployments(review)
        assert [one.name for one in review.run.deployments] == [LARGE, SMALL]
        assert all("runs 1 changed function" in one.why for one in review.run.deployments)
    recorded = ("base", [SMALL, LARGE])
    compared = ("head", [LARGE, SMALL])
    assert rehearsals == [recorded, compared, compared]


def test_the_time_of_the_base_is_no_time_of_a_part(
    tmp_path: Path, store: Store, monkeypatch: Patch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def run_part(review: Review) -> None:
        with review.count_as_base():
            clock[0] += 40.0
        clock[0] += 2.0

    monkeypatch.setattr(parts, "find_toggle_changes", lambda review: None)
    monkeypatch.setattr(parts, "PARTS", {PrPart.REHEARSE: run_part})
    review = make_review(tmp_path, store, budget=300.0)
    store.pr.begin(review.run)
    review.run.files = review.change.files
    assert review.run.files
    execution._run_parts(review)
    assert review.run.part_seconds == {"toggles": 0.0, "base": 40.0, "rehearse": 2.0}


def test_a_base_that_is_recorded_beforehand_is_not_run_by_a_review(
    tmp_path: Path, store: Store, rehearsals: list[tuple[str, list[str]]]
) -> None:
    review = make_review(tmp_path, store, budget=300.0)
    item_parts.record_unknown_items(review.request, store, review.base)
    assert rehearsals == [("base", [SMALL, LARGE])]
    item_parts.rehearse_deployments(review)
    assert rehearsals[1:] == [("head", [LARGE, SMALL])]


def test_a_review_records_what_its_budget_allows_and_base_records_the_rest(
    tmp_path: Path, store: Store, rehearsals: list[tuple[str, list[str]]]
) -> None:
    results = [make_result(LARGE, {}, 400.0), make_result(SMALL, {}, 10.0)]
    save_run(store, make_run("other", results))
    review = make_review(tmp_path, store, budget=300.0)
    item_parts.rehearse_deployments(review)
    assert rehearsals == [("base", [SMALL]), ("head", [SMALL])]
    (note,) = review.run.notes
    assert "1 deployment of 2: the functions that they run are not known" in note
    assert f"`./unfix rehearse {LARGE} --release base` runs them" in note
    item_parts.record_unknown_items(review.request, store, review.base)
    assert rehearsals[2:] == [("base", [LARGE])]


def test_an_item_whose_functions_stay_unknown_does_not_run_at_each_review(
    tmp_path: Path, store: Store, rehearsals: list[tuple[str, list[str]]]
) -> None:
    review = make_review(tmp_path, store, budget=300.0)
    review.base = dataclasses.replace(review.base, requested_as="silent")
    for _ in range(2):
        item_parts.rehearse_deployments(review)
    assert rehearsals == [("base", [SMALL, LARGE])]
    assert "2 deployments of 2: the functions that they run are not known" in review.run.notes[0]
