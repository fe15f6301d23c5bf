"""A slow guard may count repetitions of earlier runs; a differing one makes it flaky."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from calling import copy_toy_release

from harness.cli.prove.call import ProveCall
from harness.cli.prove.request import digest_inputs, digest_sources
from harness.guards import verdicts
from harness.releases.source_trees import FolderSourceTree, SourceTree
from harness.runs.prove import plan
from harness.runs.prove.earlier_runs import iterate_earlier_repetitions
from harness.store.database import Store
from harness.store.prove.table import ProveTable
from harness.store.prove.values import (
    CellResult,
    CellVerdict,
    ProveRun,
    RepeatMode,
    SideOutcome,
    SideRepetition,
    SideResult,
)
from harness.workers.release_target import ReleaseTarget

SETTINGS = {"code": "abc", "profile": "smoke"}
PASSED, FAILED = SideOutcome.PASSED, SideOutcome.FAILED


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs.sqlite")


def make_cell() -> CellResult:
    return CellResult("t.py::test_a", "27460", "0.5.23", "cpu", "fixed")


def make_side(
    name: str, outcome: SideOutcome, seconds: float = 30.0, way: RepeatMode = RepeatMode.WHOLE
) -> SideResult:
    return SideResult(name, outcome, seconds=seconds, reach=1, headline=str(outcome), way=way)


def store_night(
    store: Store,
    name: str,
    fixed: SideOutcome = PASSED,
    buggy: SideOutcome = FAILED,
    *,
    status: str = "finished",
    again: list[SideRepetition] | None = None,
    **settings: Any,
) -> None:
    run = ProveRun(
        name, "prove", f"2026-01-0{name[-1]}T00:00:00+00:00", settings=SETTINGS | settings
    )
    ProveTable(store).begin(run)
    ProveTable(store).save_planned_cells(run.id, [make_cell()])
    for each in (make_side("fixed", fixed), make_side("buggy", buggy)):
        each.again = again or []
        ProveTable(store).save_side(run.id, make_cell(), each)
    run.status = status
    ProveTable(store).save(run)


def store_nights(store: Store, count: int, *outcomes: SideOutcome, **settings: Any) -> None:
    for number in range(1, count + 1):
        store_night(store, f"night{number}", *outcomes, **settings)


def run_tonight(
    store: Store, seconds: float = 30.0, way: RepeatMode = RepeatMode.WHOLE, **settings: Any
) -> tuple[CellResult, plan.ReleasePlan, bool]:
    """Return a cell after its first two sides, and whether that was enough."""
    request = plan.ProveRequest("prove", [], [], False)
    target = ReleaseTarget("0.5.23", Path("python"), SourceTree.__new__(SourceTree))
    run = ProveRun("night9", "prove", "2026-01-09T00:00:00+00:00", settings=SETTINGS | settings)
    left = plan.ReleasePlan(
        request, target, partial(iterate_earlier_repetitions, ProveTable(store), run)
    )
    found = make_cell()
    assert not left.add_side_result(found, make_side("fixed", PASSED, seconds, way))
    assert left.waiting_tasks.popleft()[2] == "buggy"
    return found, left, left.add_side_result(found, make_side("buggy", FAILED, seconds, way))


def test_nights_of_the_same_code_stand_for_repetitions(store: Store) -> None:
    store_nights(store, 3)
    found, left, judged = run_tonight(store)
    assert judged
    assert not left.waiting_tasks
    assert found.verdict is CellVerdict.PROVEN
    assert "5 of its repetitions are those of earlier runs: night3, night2, night1" in found.why


def test_repetitions_that_earlier_nights_lack_are_run(store: Store) -> None:
    store_night(store, "night1")
    found, left, judged = run_tonight(store)
    assert not judged
    missing = verdicts.find_missing_sides(found)
    assert sorted(missing) == ["buggy", "buggy", "fixed"]
    while missing:
        name = left.waiting_tasks.popleft()[2]
        assert name in missing
        judged = left.add_side_result(found, make_side(name, FAILED if name == "buggy" else PASSED))
        missing = verdicts.find_missing_sides(found)
    assert judged
    assert "2 of its repetitions are those of earlier runs: night1" in found.why


@pytest.mark.parametrize(
    "outcomes", [(FAILED, FAILED), (PASSED, PASSED), (PASSED, SideOutcome.HANG)]
)
def test_a_night_that_differs_makes_the_cell_flaky(
    store: Store, outcomes: tuple[SideOutcome, SideOutcome]
) -> None:
    store_night(store, "night1", *outcomes)
    for name in ("night2", "night3", "night4"):
        store_night(store, name)
    found, _, judged = run_tonight(store)
    assert judged
    assert found.verdict is CellVerdict.FLAKY
    assert "night1" in found.why


@pytest.mark.parametrize(
    "other", [{"code": "abd"}, {"profile": "default"}, {"status": "stopped"}, {"status": "running"}]
)
def test_other_code_and_runs_that_did_not_finish_say_nothing(
    store: Store, other: dict[str, str]
) -> None:
    store_nights(store, 3, FAILED, PASSED, **other)
    found, left, judged = run_tonight(store)
    assert not judged
    assert len(left.waiting_tasks) == 1
    assert not any(side.again for side in found.sides.values())


def test_a_quick_side_is_run_again(store: Store) -> None:
    store_nights(store, 3)
    assert not run_tonight(store, seconds=verdicts.LONG_SIDE_SECONDS / 2)[2]
    assert not run_tonight(store, way=RepeatMode.EXAMPLE)[2]


def test_other_sources_or_packages_of_the_release_say_nothing(store: Store) -> None:
    store_nights(store, 3, sources={"0.5.23": "of yesterday"})
    found, _, judged = run_tonight(store, sources={"0.5.23": "of today"})
    assert not judged
    assert not any(side.again for side in found.sides.values())
    store_nights(store, 3, sources={"0.5.23": "of today"})
    assert run_tonight(store, sources={"0.5.23": "of today"})[2]
    another = {"0.5.23": "with another Hypothesis"}
    assert not run_tonight(store, sources={"0.5.23": "of today"}, packages=another)[2]


@pytest.mark.parametrize(
    "changed",
    [
        *("guards/helper.py", "guards/parts/more.py", "guards/parts/cases.json"),
        *("guards/plain/helper.py", "conftest.py", "guards/pytest.ini"),
    ],
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_a_file_that_a_guard_stands_on_is_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, is_relative: bool
) -> None:
    for name in ("guards/test_a.py", "guards/parts/__init__.py", changed):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n")
    monkeypatch.chdir(tmp_path / "guards")
    guard = Path("test_a.py") if is_relative else tmp_path / "guards" / "test_a.py"
    call = ProveCall("prove", "", words=["-k", "a", f"{guard}::test_a"])
    before = digest_inputs(call)
    (tmp_path / "elsewhere.py").write_text("changed = 1\n")
    assert digest_inputs(call) == before
    (tmp_path / changed).write_text("changed = 1\n")
    assert digest_inputs(call) != before


def test_a_release_that_was_edited_has_other_sources(tmp_path: Path) -> None:
    copy_toy_release(tmp_path / "sglang")
    targets = [ReleaseTarget("1.0.0", Path("python"), FolderSourceTree(tmp_path, "current"))]
    before = digest_sources(targets)
    with (tmp_path / "sglang" / "users.py").open("a") as module:
        module.write("CHANGED = 1\n")
    assert before.keys() == {"1.0.0"}
    assert digest_sources(targets) != before
