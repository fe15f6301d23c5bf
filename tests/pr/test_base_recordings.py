"""The runs that record what the architectures and deployments of a base run."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from fixture_types import Patch
from touched_runs import (
    LARGE,
    SMALL,
    PlayedRehearsals,
    make_result,
    make_review,
    make_run,
    save_run,
)

from harness.cli.pr import execution, item_parts, parts
from harness.cli.pr.review import Review
from harness.store.database import Store
from harness.store.pr.table import PrTable
from harness.store.pr.values import PrPart


def test_a_base_without_runs_runs_all_items_once_and_later_reviews_name_what_they_touch(
    tmp_path: Path, store: Store, rehearsals: PlayedRehearsals
) -> None:
    for number in range(2):
        review = make_review(tmp_path / str(number), store, budget=300.0)
        item_parts.rehearse_deployments(review)
        assert [one.name for one in review.run.deployments] == [LARGE, SMALL]
        assert all("runs 1 changed function" in one.why for one in review.run.deployments)
    recorded = ("base", [SMALL, LARGE])
    compared = ("head", [LARGE, SMALL])
    assert rehearsals.calls == [recorded, compared, compared]


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
    PrTable(store).begin(review.run)
    review.run.files = review.change.files
    assert review.run.files
    execution._run_parts(review)
    assert review.run.part_seconds == {"toggles": 0.0, "base": 40.0, "rehearse": 2.0}


def test_a_base_that_is_recorded_beforehand_is_not_run_by_a_review(
    tmp_path: Path, store: Store, rehearsals: PlayedRehearsals
) -> None:
    review = make_review(tmp_path, store, budget=300.0)
    item_parts.record_unknown_items(review.request, store, review.base)
    assert rehearsals.calls == [("base", [SMALL, LARGE])]
    item_parts.rehearse_deployments(review)
    assert rehearsals.calls[1:] == [("head", [LARGE, SMALL])]


def test_a_review_records_what_its_budget_allows_and_base_records_the_rest(
    tmp_path: Path, store: Store, rehearsals: PlayedRehearsals
) -> None:
    results = [make_result(LARGE, {}, 400.0), make_result(SMALL, {}, 10.0)]
    save_run(store, make_run("other", results))
    review = make_review(tmp_path, store, budget=300.0)
    item_parts.rehearse_deployments(review)
    assert rehearsals.calls == [("base", [SMALL]), ("head", [SMALL])]
    (note,) = review.run.notes
    assert "1 deployment of 2: the functions that they run are not known" in note
    assert f"`./unfix rehearse {LARGE} --release base` runs them" in note
    item_parts.record_unknown_items(review.request, store, review.base)
    assert rehearsals.calls[2:] == [("base", [LARGE])]


def test_an_item_whose_functions_stay_unknown_does_not_run_at_each_review(
    tmp_path: Path, store: Store, rehearsals: PlayedRehearsals
) -> None:
    review = make_review(tmp_path, store, budget=300.0)
    review.base = dataclasses.replace(review.base, requested_as="silent")
    for _ in range(2):
        item_parts.rehearse_deployments(review)
    assert rehearsals.calls == [("base", [SMALL, LARGE])]
    assert "2 deployments of 2: the functions that they run are not known" in review.run.notes[0]
