"""The architectures and deployments that run changed code, and those that a review runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fixture_types import Patch
from reviewed_files import ROWS
from touched_runs import (
    COUNT_ROWS,
    KIND,
    LARGE,
    SMALL,
    PlayedRehearsals,
    make_change,
    make_result,
    make_review,
    make_run,
    make_tree,
    save_run,
)

from harness.cli import guard_runs
from harness.cli.pr import item_parts
from harness.cli.pr.review import Review
from harness.core import paths
from harness.core.outcomes import RunStatus, Verdict
from harness.releases.managed_releases import get_newest_release
from harness.runs.pr import row_changes, source_change, touched_items
from harness.runs.pr.touched_items import ChangedNames
from harness.runs.rehearse.deployment import read_deployments
from harness.runs.zoo.architecture import list_families, read_architectures
from harness.store import record_files
from harness.store.database import Store
from harness.store.pr.part_results import ClaimChange, TouchedItem
from harness.store.pr.values import PrPart, PrRun
from harness.store.rehearse.table import RehearsalTable
from harness.store.rehearse.values import RehearsalRun
from harness.store.zoo.table import ZooTable
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim, ZooRun
from reports.pr import view
from reports.shared.tables import make_mark

NESTED = """\
class Rotary:
    @wrapped
    def forward(self):
        def turn(x):
            return x + 1
        return turn
"""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (2, "Rotary.forward"),
        (3, "Rotary.forward"),
        (5, "Rotary.forward.<locals>.turn"),
        (6, "Rotary.forward"),
        (1, ""),
    ],
)
def test_a_line_belongs_to_the_innermost_function_by_pythons_name(
    tmp_path: Path, line: int, name: str
) -> None:
    tree = make_tree(tmp_path, NESTED)
    found = list(touched_items.find_functions(tree, {"sglang.srt.rows": {line}}))
    assert found == ([("sglang.srt.rows", name)] if name else [])


def test_a_changed_function_is_named_and_so_is_a_user_of_a_changed_constant(
    tmp_path: Path,
) -> None:
    code = touched_items.find_changed_code(make_change(tmp_path / "line"), ["m:k"], [])
    assert code.functions == {("sglang.srt.rows", "count_rows")}
    assert code.kernels == {"m:k", "sglang.srt.rows:count_rows"}
    base = make_tree(tmp_path / "base", ROWS)
    head = make_tree(tmp_path / "head", ROWS.replace("WIDTH = 2", "WIDTH = 3"))
    change = source_change.read_change(base, head, ["sglang/srt/rows.py"])
    assert touched_items.find_changed_code(change, [], []).functions == {
        ("sglang.srt.rows", "count_rows")
    }


def test_the_most_concerned_come_first_and_then_the_quickest() -> None:
    code = ChangedNames(
        frozenset({("m", "f"), ("m", "g")}), frozenset({"m:walk"}), frozenset({"llama"})
    )
    results = {
        "slow": ArchitectureResult("slow", functions={"m": ["f"]}, seconds=9.0),
        "quick": ArchitectureResult("quick", functions={"m": ["f"]}, seconds=2.0),
        "most": ArchitectureResult(
            "most", functions={"m": ["f", "g"]}, kernels={"m:walk": 1}, seconds=30.0
        ),
        "none": ArchitectureResult("none", functions={"m": ["h"]}),
        # What is added to its model's file, such as an override, is not among what it ran.
        "llama": ArchitectureResult("llama", functions={"m": ["h"]}, seconds=1.0),
    }
    models = {name: {name} for name in results} | {"unknown": {"llama"}}
    touched = touched_items.find_touched(code, results, models)
    touched = touched_items.sort_touched(touched, [], {})
    assert [one.name for one in touched] == ["most", "quick", "slow", "unknown", "llama"]
    assert touched[0].why == "launches walk; runs 2 changed functions, such as m:f"
    assert touched[-1].why == "its model's file changed"


def test_of_equally_concerned_items_those_come_first_that_have_what_the_change_is_about(
    tmp_path: Path,
) -> None:
    text = ROWS.replace("OTHER = 3", "OTHER = full_to_swa_mapping(3)")
    base, head = make_tree(tmp_path / "base", ROWS), make_tree(tmp_path / "head", text)
    change = source_change.read_change(base, head, ["python/sglang/srt/rows.py"])
    features = touched_items.find_changed_features(change)
    assert features == {"windows"}
    items = [TouchedItem(name, "runs it", 1, seconds) for name, seconds in
             (("quick", 1.0), ("windowed", 9.0), ("remarked", 2.0))]  # fmt: skip
    definitions = {"windowed": "sliding_window: 16", "remarked": "dim: 3  # no window"}
    ordered = touched_items.sort_touched(items, features, definitions)
    assert [one.name for one in ordered] == ["windowed", "quick", "remarked"]
    assert ordered[0].why == "runs it; has windows"


@pytest.mark.parametrize(
    ("limit", "seconds_left", "reasons"),
    [
        (2, 300.0, ["", "", "--deployments 2"]),
        (9, 130.0, ["", "more than the 130 s that are left of --budget", ""]),
        (0, 300.0, ["--deployments 0"] * 3),
        (9, 30.0, ["more than the 30 s that are left of --budget"] * 3),
    ],
)
def test_an_item_that_the_limit_or_the_budget_leaves_out_has_the_reason(
    limit: int, seconds_left: float, reasons: list[str]
) -> None:
    items = [TouchedItem(str(seconds), "", 1, seconds) for seconds in (20.0, 30.0, 25.0)]
    touched_items.leave_out(items, KIND, limit, seconds_left)
    assert [one.left_out for one in items] == reasons


def test_the_command_that_records_many_items_is_short() -> None:
    assert KIND.fill_record_command(["a", "b"], "ga") == "run a b on ga"
    assert KIND.fill_record_command(list(map(str, range(99))), "ga") == "run --all on ga"


@pytest.mark.parametrize(
    ("runs", "base", "known"),
    [
        # The newest run on the base is what is known, and of another item that of any release.
        ({"base": {"a": ["on_base"]}, "other": {"a": ["else"], "b": ["else"]}}, "base",
         {"a": ["on_base"], "b": ["else"]}),
        # One that knows no functions hides none that does, and the search ends after two runs.
        ({"early": {"a": ["f"]}, "late": {"a": []}}, "late", {"a": ["f"]}),
        ({"1": {"a": ["f"]}, "2": {"a": []}, "3": {"a": []}}, "none", {"a": []}),
    ],
)  # fmt: skip
def test_what_is_known_of_an_item_is_of_the_newest_run_that_knows_functions(
    store: Store,
    monkeypatch: Patch,
    runs: dict[str, dict[str, list[str]]],
    base: str,
    known: dict[str, list[str]],
) -> None:
    monkeypatch.setattr(touched_items, "MAX_READ_RUNS", 2)
    for seconds, (name, items) in enumerate(runs.items(), 1):
        results = [
            make_result(item, {"m": functions} if functions else {}, seconds)
            for item, functions in items.items()
        ]
        save_run(store, make_run(name, results))
    found = touched_items.find_known_results(RehearsalTable(store), RehearsalRun, base, list(known))
    assert {item: one.functions.get("m", []) for item, one in found.items()} == known
    if not any(known.values()):
        assert found["a"].seconds == len(runs)  # an older one replaces no newer one


@pytest.mark.parametrize(("is_of_this_code", "reruns"), [(True, False), (False, True)])
def test_a_base_that_other_code_rehearsed_runs_again(
    tmp_path: Path,
    store: Store,
    rehearsals: PlayedRehearsals,
    is_of_this_code: bool,
    reruns: bool,
) -> None:
    review = make_review(tmp_path, store, budget=300.0)
    earlier = make_run("base", [make_result(SMALL, COUNT_ROWS, 10.0)])
    earlier.code = guard_runs.digest_lane_code(review.base, []) if is_of_this_code else "another"
    save_run(store, earlier)
    save_run(store, make_run("other", [make_result(LARGE, {"m": ["f"]}, 10.0)]))
    item_parts.rehearse_deployments(review)
    assert [name for name, _ in rehearsals.calls] == ["base"] * reruns + ["head"]


def test_a_budget_that_leaves_no_item_is_not_green(
    tmp_path: Path, monkeypatch: Patch, store: Store
) -> None:
    others = [make_result(LARGE, COUNT_ROWS, 400.0), make_result(SMALL, {"m": ["f"]}, 1.0)]
    save_run(store, make_run("other", others))
    review = make_review(tmp_path, store, budget=300.0)
    monkeypatch.setattr(Review, "seconds_left", 300.0)
    item_parts.rehearse_deployments(review)
    review.run.parts, review.run.status = [PrPart.REHEARSE], RunStatus.FINISHED
    review.judge_lines()
    (problem,) = review.run.problems
    assert problem.startswith("incomplete: python/sglang/srt/rows.py:10: ")
    assert problem.endswith(f"left out: {LARGE}")
    assert not review.run.green


def test_preparing_both_ends_does_not_count_against_the_budget(
    tmp_path: Path, store: Store
) -> None:
    review = make_review(tmp_path, store, budget=300.0)
    review.started = time.monotonic() - 500.0
    review.run.part_seconds = {"prepare": 400.0, "base": 50.0}
    assert 240.0 < review.seconds_left <= 250.0


@pytest.mark.parametrize(
    ("table_type", "run_type"), [(ZooTable, ZooRun), (RehearsalTable, RehearsalRun)]
)
def test_without_a_stored_run_the_record_is_what_is_known(
    tmp_path: Path, monkeypatch: Patch, table_type: Any, run_type: type[ZooRun | RehearsalRun]
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    names = ["llama", "llama-3.1-8b-tp2-h100"]
    known = touched_items.find_known_results(table_type(Store()), run_type, "base", names)
    assert len(known) == 1
    assert all(one.kernels for one in known.values())


@pytest.mark.parametrize(
    ("failure", "is_broken"), [("", False), ("KeyError: 'a row that is gone'", True)]
)
def test_a_deployment_is_rehearsed_on_both_ends_and_breaks_only_where_it_ran_before(
    tmp_path: Path, store: Store, rehearsals: PlayedRehearsals, failure: str, is_broken: bool
) -> None:
    earlier = [make_result(SMALL, COUNT_ROWS, 10.0), make_result(LARGE, COUNT_ROWS, 400.0)]
    save_run(store, make_run("other", earlier))
    rehearsals.failure_of_head = failure
    review = make_review(tmp_path, store, budget=300.0)
    item_parts.rehearse_deployments(review)
    review.run.parts, review.run.status = [PrPart.REHEARSE], RunStatus.FINISHED
    assert rehearsals.calls == [("base", [SMALL]), ("head", [SMALL])]
    assert review.run.green is not is_broken
    (section,) = view.make_sections(review.run)
    why = "runs 1 changed function, such as sglang.srt.rows:count_rows"
    assert f"2 deployments run changed code; run here: {SMALL} ({why})" in section.summary
    assert ("as before" in section.summary) is not is_broken
    assert [detail.lines for detail in section.details] == ([[failure]] if is_broken else [])
    (left_out,) = [note for note in review.run.notes if LARGE in note and "not run" in note]
    assert f"`./unfix rehearse {LARGE} --diff base..head` runs one" in left_out
    assert not any("are not known" in note for note in review.run.notes)
    # What breaks it is the headline.
    assert ("breaks the deployment" in review.run.headline) is is_broken


def test_the_records_are_of_this_checkout_and_of_the_newest_release() -> None:
    items = {
        "zoo": (ZooRun, {one.name for one in read_architectures([])} | {*list_families()}),
        "rehearse": (RehearsalRun, set(read_deployments())),
    }
    for kind, (run_type, names) in items.items():
        file = touched_items.find_record(kind)
        assert file is not None
        assert file.is_relative_to(paths.project_folder())
        run = msgspec.json.decode(record_files.read_record_text(file), type=run_type)
        assert run.release == get_newest_release().name
        assert {one.name for one in run.results} <= names


@pytest.mark.parametrize(("refusal", "left"), [("", []), ("exceeded 240 s", ["a"])])
def test_an_item_that_was_killed_is_not_recorded(
    store: Store, refusal: str, left: list[str]
) -> None:
    run = make_run("base", [make_result("a", {}, 1.0)])
    run.deployments[0].refusal = refusal
    save_run(store, run)
    assert touched_items.leave_out_recorded(RehearsalTable(store), "base", "", ["a"]) == left


def test_an_architecture_that_a_release_lacks_is_recorded(store: Store) -> None:
    results = [
        ArchitectureResult("gone", absent="no such type"),
        ArchitectureResult("killed", [ClaimResult(ZooClaim.STARTS, Verdict.FAILS)]),
    ]
    run = make_zoo_run(*results)
    run.status = RunStatus.FINISHED
    ZooTable(store).begin(run)
    for number, result in enumerate(results):
        ZooTable(store).save_result(run.id, number, result)
    ZooTable(store).save(run)
    names = ["gone", "killed"]
    assert touched_items.leave_out_recorded(ZooTable(store), "r", "", names) == ["killed"]


def make_zoo_run(*results: ArchitectureResult) -> ZooRun:
    return ZooRun(id="1", started="", release="r", card="H100", architectures=list(results))


def test_an_architecture_that_the_change_removes_is_lost() -> None:
    holding = [ClaimResult(ZooClaim.STARTS, Verdict.HOLDS)]
    gone = ArchitectureResult("llama", absent="SGLang runs it through transformers' own code")
    never = ArchitectureResult("zaya", absent="no such type")
    before = make_zoo_run(ArchitectureResult("llama", holding), never)
    (change,) = row_changes.compare_rows(before, make_zoo_run(gone, never))
    assert change == ClaimChange("llama", "starts", "holds", "absent", gone.absent)
    assert change.is_lost
    run = PrRun("1", "", "", "a..b", "a", "b", RunStatus.FINISHED, claims=[change])
    assert run.model_problems == [f"llama: starts held and is absent now: {gone.absent}"]
    run.parts, run.claims = [PrPart.ZOO], [change, ClaimChange("zaya", "starts", "fails", "absent")]
    (section,) = view.make_sections(run)
    assert [row[2] for row in section.table.rows] == [
        make_mark(view.MARKS[name]) for name in ("holds no more", "fails as before")
    ]


def test_a_row_or_a_deployment_that_does_not_start_compares_nothing() -> None:
    refused = make_result(SMALL, COUNT_ROWS, 1.0)
    assert item_parts.has_started(refused)
    refused.refusal = "no memory"
    assert not item_parts.has_started(refused)
    stopped = ClaimResult(ZooClaim.STARTS, Verdict.FAILS)
    assert not item_parts.has_started(ArchitectureResult("llama", [stopped]))
    started = ClaimResult(ZooClaim.STARTS, Verdict.HOLDS)
    assert item_parts.has_started(ArchitectureResult("llama", [started]))


def test_each_changed_function_has_an_item_before_one_has_two() -> None:
    quick = [TouchedItem(name, "", 1, float(at), runs=["m:load"]) for at, name in enumerate("abc")]
    slow = TouchedItem("gemma2", "", 1, 9.0, runs=["m:scale"])
    names = [one.name for one in touched_items.sort_touched([*quick, slow], [], {})]
    assert names == ["a", "gemma2", "b", "c"]
