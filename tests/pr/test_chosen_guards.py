"""Each guard of a review runs on its own device; what the budget has no room for is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Patch
from made_up_toggle import TOGGLE
from touched_runs import make_review

from harness.cli import guard_runs
from harness.cli.pr import execution, parts, review
from harness.cli.pr.review import GUARDS_SHARE, Review
from harness.core import paths
from harness.core.outcomes import Outcome, RunStatus
from harness.fixes.registry import toggle_catalogue
from harness.runs.mutate import coverage_recorder
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.pr import proposed_tests, touched_items
from harness.store.database import Store
from harness.store.pr.line_results import ReviewResult
from harness.store.pr.part_results import GuardChange
from harness.store.pr.values import PrPart, PrRun

ROWS = "sglang.srt.rows"
CHANGED_LINE = 10  # of the base: `return size + 1`, or what stands for it
HEAD_LINES = [10, 11]
CACHES = "suites/lifecycles/test_caches.py"
TREE = f"{CACHES}::test_a_tree_of_tokens"
INDICES = "suites/kv_indices/test_kv_indices.py::test_every_index"
SCRIPT = [
    "# ./unfix exec --release RELEASE --device virtual -- python SCRIPT",
    "from fixtures.lifecycles.program_run import *",
    "from fixtures.lifecycles.programs import *",
    "Program(Setup(), (",
    "    Submit(prompt=0),",
    ")).run()",
]


def make_coverage(guard: str, lines: list[int], seconds: float = 1.0) -> GuardCoverage:
    return GuardCoverage(guard, Outcome.PASSED, seconds, lines={ROWS: lines})


def make_covered_review(
    tmp_path: Path, store: Store, coverages: list[GuardCoverage], budget: float
) -> Review:
    made = make_review(tmp_path, store, budget)
    made.__dict__["coverages"] = coverages
    made.__dict__["traced_old_lines"] = {ROWS: {CHANGED_LINE}}
    return made


@pytest.fixture(autouse=True)
def _two_tests_run_at_a_time(monkeypatch: Patch) -> None:
    monkeypatch.setattr(guard_runs, "choose_job_count", lambda device, jobs=None: 2)
    monkeypatch.setattr(Review, "seconds_left", 200.0)


@pytest.mark.parametrize("suites", [[], [TREE, INDICES]])
def test_a_lifecycle_is_recorded_on_the_virtual_gpu_and_a_plain_guard_on_the_cpu(
    tmp_path: Path, store: Store, monkeypatch: Patch, suites: list[str]
) -> None:
    calls: list[tuple[str, Sequence[str]]] = []
    profiles: dict[str, str] = {}

    def record(plan: Any, *_: object) -> list[GuardCoverage]:
        calls.append((plan.target.device, plan.pytest_arguments))
        profiles[plan.target.device] = plan.profile
        both = [make_coverage(TREE, [CHANGED_LINE]), make_coverage(INDICES, [CHANGED_LINE])]
        return [one for one in both if plan.target.device == "cpu" or one.guard == TREE]

    monkeypatch.setattr(coverage_recorder, "record_release_coverage", record)
    made = make_review(tmp_path, store, 300.0)
    coverages = review.record_coverage(made.request, made.base, suites)
    words = dict(calls)
    assert profiles == {"cpu": "default", "virtual": "smoke"}
    assert sorted(words) == ["cpu", "virtual"]
    assert any(word.startswith(CACHES) for word in words["virtual"])
    assert not any(word.startswith(CACHES) for word in words["cpu"])
    assert sorted(one.guard for one in coverages) == [INDICES, TREE]  # each once


def test_guards_are_proven_whose_toggles_are_of_a_changed_file_and_run_as_they_are_otherwise(
    tmp_path: Path, store: Store, monkeypatch: Patch
) -> None:
    (tmp_path / "toggles").mkdir()
    (tmp_path / "toggles" / "made-up.yaml").write_text(TOGGLE)
    coverages = [
        make_coverage(TREE, [CHANGED_LINE]),
        make_coverage(INDICES, [CHANGED_LINE]),
        make_coverage("suites/page_table/test_trees.py::test_other", [CHANGED_LINE]),
        make_coverage(f"{CACHES}::test_no_tree", [CHANGED_LINE + 1]),
    ]
    made = make_covered_review(tmp_path, store, coverages, 300.0)
    made.catalogue = toggle_catalogue.load_catalogue([tmp_path / "toggles"])
    (toggle,) = (one for one in made.catalogue if one.id == "made-up")  # of the changed file
    named = [paths.project_folder() / guard.partition("::")[0] for guard in (TREE, INDICES)]
    monkeypatch.setattr(
        review, "find_guard_files", lambda words, found: named if toggle in found else []
    )
    assert made.guards == sorted([INDICES, TREE, "suites/page_table/test_trees.py::test_other"])
    assert made.provable_guards == [INDICES]  # proofs of lifecycles take too long


def test_a_guard_without_room_in_the_budget_is_named_and_leaves_its_lines_incomplete(
    tmp_path: Path, store: Store
) -> None:
    long = make_coverage(TREE, [CHANGED_LINE], seconds=200.0 * GUARDS_SHARE)
    made = make_covered_review(tmp_path, store, [long], 300.0)
    assert made.guards == []
    assert "test_a_tree_of_tokens" in made.run.notes[0]
    made.judge_lines()
    (function,) = made.run.functions
    assert function.left_out == [TREE]
    assert function.result is ReviewResult.INCOMPLETE
    assert not made.run.green


def test_of_two_guards_of_a_line_the_one_about_windows_runs_first(
    tmp_path: Path, store: Store, monkeypatch: Patch
) -> None:
    names = [f"{CACHES}::test_a_tree_of_tokens", f"{CACHES}::test_windows_of_tokens"]
    coverages = [make_coverage(name, [CHANGED_LINE], seconds=10.0) for name in names]
    made = make_covered_review(tmp_path, store, coverages, 300.0)
    monkeypatch.setattr(touched_items, "find_changed_features", lambda change: {"windows"})
    monkeypatch.setattr(Review, "seconds_left", 110.0)
    assert made.guards == [names[1]]


def test_a_lifecycle_that_fails_is_proposed_as_a_test(tmp_path: Path) -> None:
    change = GuardChange(TREE, "", "passed", "failed", "passed", "failed", "WrongAnswer: r000")
    change.example = ["Falsifying example: test_a_tree_of_tokens(", *SCRIPT, "You can reproduce"]
    run = PrRun("r", "", "checkout", "a..b", "base", "head", guards=[change])
    execution.write_tests(run, tmp_path / "tests")
    (file,) = (tmp_path / "tests").iterdir()
    assert file.name == "test_a_tree_of_tokens.py"
    text = file.read_text()
    compile(text, file.name, "exec")
    assert "def test_a_tree_of_tokens() -> None:\n    Program(Setup(), (\n" in text
    assert "reproduce" not in text
    change.plain_after = "passed"
    assert proposed_tests.list_tests(run) == {}


@pytest.mark.parametrize("before", [Outcome.SKIPPED, Outcome.FAILED, Outcome.PASSED])
def test_a_guard_that_does_not_pass_before_the_change_compares_nothing(
    tmp_path: Path, store: Store, monkeypatch: Patch, before: Outcome
) -> None:
    on_base, on_head = make_coverage(INDICES, [CHANGED_LINE]), make_coverage(INDICES, HEAD_LINES)
    on_base.outcome = on_head.outcome = before
    made = make_covered_review(tmp_path, store, [on_base], 300.0)
    monkeypatch.setattr(parts, "record_coverage", lambda *_: [on_head])
    parts.prove_guards(made)
    made.run.planned = made.run.parts = [PrPart.SUITES]
    made.run.status = RunStatus.FINISHED
    made.judge_lines()
    is_compared = before is Outcome.PASSED
    assert made.run.result is (ReviewResult.SAME if is_compared else ReviewResult.NOT_RUN)
