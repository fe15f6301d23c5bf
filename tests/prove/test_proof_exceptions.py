"""Toggles of a release that nothing proves: red, unless the list of exceptions expects them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import yaml
from packaging.version import Version

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.outcomes import Outcome, Verdict
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.guards import proof_exceptions, teeth
from harness.guards.proof_exceptions import ProofException
from harness.patching import live_engine
from harness.releases import managed_releases
from harness.releases.source_trees import SourceTree
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.store.prove import recorded_proofs
from harness.store.prove.values import CellResult, ProveRun, ReleaseFacts, SideResult
from harness.store.record_files import read_record_text
from harness.workers.messages import GuardsCollected, GuardTask
from harness.workers.release_target import ReleaseTarget

ONE, OTHER, *_ = toggle_catalogue.load_catalogue()
GUARD = "suites/test_it.py::test_it"
REASON = "nobody reaches it"


def load_list(folder: Path, text: str) -> tuple[ProofException, ...]:
    file = folder / "proof_exceptions.yaml"
    file.write_text(f"exceptions:\n{text}")
    return proof_exceptions.load_exceptions(file, [ONE.id, OTHER.id])


def make_entry(toggle: str = ONE.id, **values: str) -> str:
    fields = {"toggles": f"['{toggle}']", "reason": REASON, **values}
    return "".join(
        f"  {'- ' if n == 0 else '  '}{k}: {v}\n" for n, (k, v) in enumerate(fields.items())
    )


def make_plan(
    exceptions: tuple[ProofException, ...], state: str, *arguments: str, version: str = "0.5.23"
) -> ReleasePlan:
    tree: Any = SimpleNamespace(version=Version(version) if version else None)
    target = ReleaseTarget("gadc40113ca17", Path("python"), tree)
    request = ProveRequest(
        "prove",
        [target],
        [ONE, OTHER],
        has_named_toggles=False,
        pytest_arguments=list(arguments),
        exceptions=exceptions,
    )
    plan = ReleasePlan(request, target)
    plan.facts.states = {ONE.id: state, OTHER.id: "absent"}
    return plan


def collect_facts(plan: ReleasePlan, *tasks: GuardTask) -> ReleaseFacts:
    plan.plan_tasks(GuardsCollected(list(tasks), 0.0, "cpu", True))
    return plan.facts


def run_guard(plan: ReleasePlan, fixed: SideResult, buggy: SideResult) -> CellResult:
    """Run both sides of a guard of the first toggle, and what a proof repeats."""
    state = plan.facts.states[ONE.id]
    tasks = [GuardTask(n, GUARD, ONE.id, each, state) for n, each in enumerate(("fixed", "buggy"))]
    collect_facts(plan, *tasks)
    cell = plan.cells[ONE.id, GUARD]
    done = plan.add_side_result(cell, buggy) or plan.add_side_result(cell, fixed)
    while not done:
        _, _, side = plan.waiting_tasks.popleft()
        done = plan.add_side_result(cell, fixed if side == "fixed" else buggy)
    return cell


def skip_guard(plan: ReleasePlan) -> CellResult:
    sides = (SideResult(n, Outcome.NA, headline="no such kernel") for n in ("fixed", "buggy"))
    return run_guard(plan, *sides)


def prove_guard(plan: ReleasePlan) -> CellResult:
    return run_guard(
        plan,
        SideResult("fixed", Outcome.PASSED, reach=1),
        SideResult("buggy", Outcome.FAILED, reach=1),
    )


@pytest.mark.parametrize("state", ["fixed", "buggy"])
def test_a_toggle_without_a_guard_is_a_problem_unless_it_is_listed(
    tmp_path: Path, state: str
) -> None:
    elsewhere = GuardTask(0, GUARD, "elsewhere", "fixed", "fixed")
    assert collect_facts(make_plan((), state), elsewhere).unguarded == [ONE.id]
    on = collect_facts(make_plan(load_list(tmp_path, make_entry()), state), elsewhere)
    assert (on.unguarded, on.expected_unguarded) == ([], {ONE.id: REASON})
    assert not on.problems


@pytest.mark.parametrize("state", ["fixed", "buggy"])
def test_a_guard_that_does_not_apply_is_broken_unless_it_is_listed(
    tmp_path: Path, state: str
) -> None:
    cell = skip_guard(make_plan((), state))
    assert cell.verdict is Verdict.BROKEN
    assert f"the release has the toggle ({state}): no such kernel" in cell.why
    for entry in (make_entry(), make_entry(guard="test_it.py::test_it")):
        cell = skip_guard(make_plan(load_list(tmp_path, entry), state))
        assert (cell.verdict, cell.why) == (Verdict.NA, f"no such kernel; expected: {REASON}")
    # The last two end GUARD's id, and are names of other guards.
    for other in ("test_it.py::test_other", "it", "_it.py::test_it"):
        listed = load_list(tmp_path, make_entry(guard=other))
        assert skip_guard(make_plan(listed, state)).verdict is Verdict.BROKEN


def test_a_device_that_a_toggle_leaves_out_needs_an_entry(tmp_path: Path) -> None:
    task = GuardTask(0, GUARD, ONE.id, "fixed", "fixed", not_applicable_reason="no bug of cuda")
    for exceptions, verdict in (((), "broken"), (load_list(tmp_path, make_entry()), "n/a")):
        plan = make_plan(exceptions, "fixed")
        collect_facts(plan, task)
        assert plan.cells[ONE.id, GUARD].verdict == verdict


def test_a_toggle_that_is_not_in_the_release_needs_no_entry() -> None:
    task = GuardTask(0, GUARD, OTHER.id, "fixed", "absent", not_applicable_reason="not here")
    plan = make_plan((), "absent")
    on = collect_facts(plan, task)
    assert plan.cells[OTHER.id, GUARD].verdict is Verdict.NA
    assert (on.unguarded, on.problems) == ([], [])


@pytest.mark.parametrize("guard", [{}, {"guard": "test_it.py::test_it"}])
def test_an_entry_whose_guard_proves_the_toggle_is_a_problem(
    tmp_path: Path, guard: dict[str, str]
) -> None:
    plan = make_plan(load_list(tmp_path, make_entry(OTHER.id) + make_entry(**guard)), "fixed")
    assert prove_guard(plan).verdict is Verdict.PROVEN
    (problem,) = plan.facts.problems
    assert re.match(rf"proof_exceptions.yaml:4 .*{ONE.id}.*{GUARD} is proven: remove", problem)


def test_entries_are_about_the_version_of_an_added_checkout_not_its_name(tmp_path: Path) -> None:
    listed = load_list(tmp_path, make_entry(releases="'<0.5.23'"))
    plan = make_plan(listed, "fixed", version="0.5.23.post1+gadc40113ca17")
    assert skip_guard(plan).verdict is Verdict.BROKEN
    older = make_plan(listed, "fixed", version="0.5.22.post1+gadc40113ca17")
    assert skip_guard(older).verdict is Verdict.NA


def test_a_checkout_without_a_version_has_all_entries_and_contradicts_none_of_a_range(
    tmp_path: Path,
) -> None:
    listed = load_list(tmp_path, make_entry(releases="'<0.5.13'"))
    assert skip_guard(make_plan(listed, "fixed", version="")).verdict is Verdict.NA
    plan = make_plan(listed, "fixed", version="")
    prove_guard(plan)
    assert not plan.facts.problems
    plan = make_plan(load_list(tmp_path, make_entry()), "fixed", version="")
    prove_guard(plan)
    assert len(plan.facts.problems) == 1, "an entry without a range is about every release"


@pytest.mark.parametrize(
    "limits", [{"releases": "'<0.5.23'"}, {"devices": "[cuda]"}, {"guard": "::test_other"}]
)
def test_an_entry_about_something_else_neither_excuses_nor_is_a_problem(
    tmp_path: Path, limits: dict[str, str]
) -> None:
    listed = load_list(tmp_path, make_entry(**limits))
    assert skip_guard(make_plan(listed, "fixed")).verdict is Verdict.BROKEN
    plan = make_plan(listed, "fixed")
    prove_guard(plan)
    assert not plan.facts.problems


def test_the_list_is_not_about_guards_outside_of_the_suites(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").touch()
    plan = make_plan((), "fixed", str(tmp_path / "test_it.py"))
    assert plan.request.find_working_folder() == tmp_path
    assert skip_guard(plan).verdict is Verdict.NA
    plan = make_plan(load_list(tmp_path, make_entry()), "fixed", str(tmp_path / "test_it.py"))
    prove_guard(plan)
    assert not plan.facts.problems


@pytest.mark.parametrize("is_listed", [True, False])
def test_teeth_apply_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    listed = load_list(tmp_path, make_entry()) if is_listed else ()
    monkeypatch.setattr(teeth, "_load_exceptions", lambda: listed)
    monkeypatch.setattr(
        live_engine, "engine", SimpleNamespace(sources=Mock(version=Version("1.0")))
    )

    def judge(verdict: Verdict, folder: Path) -> tuple[Verdict | None, pytest.TestReport]:
        item: Any = Mock(path=folder / "test_it.py", nodeid=GUARD, location=("", 0, ""))
        item.keywords = {}
        sides = {"buggy": SideResult("buggy", Outcome.FAILED)}
        cell = CellResult(GUARD, ONE.id, "current", "cpu", "fixed", verdict, sides=sides)
        problems = teeth._check_exceptions(item, cell)
        return cell.verdict, teeth._make_report(item, cell, 0.0, problems)

    suites = paths.project_folder() / "suites"
    verdict, report = judge(Verdict.NA, suites)
    assert verdict is (Verdict.NA if is_listed else Verdict.BROKEN)
    assert report.outcome == ("skipped" if is_listed else "failed")
    _, report = judge(Verdict.PROVEN, suites)
    assert report.outcome == ("failed" if is_listed else "passed")
    assert judge(Verdict.NA, tmp_path)[1].outcome == "skipped"
    assert judge(Verdict.PROVEN, tmp_path)[1].outcome == "passed"


@pytest.mark.parametrize(
    ("entry", "line", "words"),
    [
        (make_entry("no-such-toggle"), 2, "no toggle is called no-such-toggle"),
        (make_entry(releases="'newest'"), 4, "newest"),
        (make_entry(device="cpu"), 4, "unknown key `device`"),
        (make_entry(reason="later"), 3, "reason"),
    ],
)
def test_a_mistake_in_the_list_is_named_with_its_line(
    tmp_path: Path, entry: str, line: int, words: str
) -> None:
    with pytest.raises(UnfixError, match=rf"proof_exceptions.yaml:{line}: .*{words}"):
        load_list(tmp_path, entry)


# The list in the tree

LISTED = proof_exceptions.load_project_exceptions(toggle_catalogue.load_catalogue())


@cache
def find_releases(toggle: str) -> frozenset[str]:
    """Find the managed releases that have a toggle."""
    (found,) = toggle_catalogue.load_catalogue().select(toggle)
    return frozenset(
        name
        for name, tree in open_trees().items()
        if find_toggle_status(found, tree).state in (ToggleState.FIXED, ToggleState.BUGGY)
    )


@cache
def open_trees() -> dict[str, SourceTree]:
    return {release.name: release.open_sources() for release in managed_releases.list_releases()}


def list_places(entry: ProofException) -> set[tuple[str, str]]:
    """List the releases and devices that an entry is about, on a machine with what it lacks."""
    releases, entry = find_releases(entry.toggle), replace(entry, without="")
    return {(r, d) for r in releases for d in ("cpu", "cuda") if entry.applies_to(Version(r), d)}


@pytest.mark.parametrize("entry", LISTED, ids=lambda entry: f"{entry.place} {entry.toggle}")
def test_an_entry_of_the_tree_is_about_something_and_nothing_else_covers_it(
    entry: ProofException,
) -> None:
    assert list_places(entry), "no release has the toggle there"
    for other in LISTED:
        same_guard = None in (other.guard, entry.guard) or other.guard == entry.guard
        if entry.without != other.without:
            continue  # each is about other runs
        if other is not entry and other.toggle == entry.toggle and same_guard:
            assert not list_places(entry) & list_places(other), other.place


@pytest.mark.parametrize("entry", LISTED, ids=lambda entry: f"{entry.place} {entry.toggle}")
def test_an_entry_of_the_tree_names_a_guard_and_a_matrix_that_exist(entry: ProofException) -> None:
    if entry.guard is not None:
        file, _, test = entry.guard.partition("::")
        (found,) = (paths.project_folder() / "suites").rglob(file)
        assert f"def {test.partition('[')[0]}(" in found.read_text()
    folder = paths.project_folder() / "suites" / "matrices"
    for matrix in re.findall(r"`unfix eval (\S+)`", entry.reason):
        faults = yaml.safe_load((folder / f"{matrix}.yaml").read_text())["faults"]
        assert entry.toggle in [str(fault["revert"]) for fault in faults]


# The records


@pytest.mark.parametrize("name", ["cpu", "h100-own-kernels", "cuda-h100"])
def test_a_recorded_proof_has_each_toggle_of_its_releases_proven_or_expected(name: str) -> None:
    text = read_record_text(recorded_proofs.proofs_folder() / f"{name}.json.xz")
    run = msgspec.json.decode(text, type=ProveRun)
    assert not run.problems
    cells: dict[tuple[str, str], list[CellResult]]
    cells = {(on.release, toggle): [] for on in run.releases for toggle in on.states}
    for cell in run.cells:
        cells[cell.release, cell.toggle].append(cell)
    for on in run.releases:
        for toggle, state in on.states.items():
            if state not in proof_exceptions.PRESENT_STATES:
                continue
            found = cells[on.release, toggle]
            assert found or toggle in on.expected_unguarded, (on.release, toggle)
            for cell in found:
                known = cell.verdict is Verdict.PROVEN or "; expected: " in cell.why
                assert known, (cell.key, cell.why)


def test_the_record_on_a_cpu_has_every_managed_release() -> None:
    text = read_record_text(recorded_proofs.proofs_folder() / "cpu.json.xz")
    run = msgspec.json.decode(text, type=ProveRun)
    releases = {release.name for release in managed_releases.list_releases()}
    assert {on.release for on in run.releases} == releases
