"""The lines that stand for a change, the guards that run them, and the guard nearest to a fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from reviewed_files import ROWS

from harness.core.outcomes import Outcome, Verdict
from harness.guards import run_item
from harness.releases.source_trees import FolderSourceTree
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.pr import changed_guards, nearest_guards, source_change
from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import FaultResult
from harness.store.pr.values import PrRun
from harness.store.prove.values import CellResult, SideResult
from reports.pr import view

USER = "from sglang.srt.rows import WIDTH as W\n\n\ndef get_width():\n    return W\n"
PASSED, FAILED = Outcome.PASSED, Outcome.FAILED


def make_tree(folder: Path, rows: str) -> FolderSourceTree:
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "rows.py").write_text(rows)
    (package / "user.py").write_text(USER)
    return FolderSourceTree(folder, folder.name)


def make_guard(name: str, **lines: list[int]) -> GuardCoverage:
    by_module = {f"sglang.srt.{module}": numbers for module, numbers in lines.items()}
    return GuardCoverage(f"suites/a/test_a.py::{name}", PASSED, 1.0, lines=by_module)


def test_a_changed_line_of_a_function_is_the_line_itself(tmp_path: Path) -> None:
    base = make_tree(tmp_path / "base", ROWS)
    head = make_tree(tmp_path / "head", ROWS.replace("size + 1", "size"))
    paths = ["python/sglang/srt/rows.py", "python/sglang/srt/user.py", "README.md", "test/a.py"]
    change = source_change.read_change(base, head, paths)
    assert change.old_lines == change.new_lines == {"sglang.srt.rows": {10}}
    assert change.others == ["README.md", "test/a.py"]
    (file,) = change.files
    assert (file.path, file.added, file.removed) == ("python/sglang/srt/rows.py", 1, 1)


def test_a_comment_is_no_change_of_its_function(tmp_path: Path) -> None:
    """The review of window-only-pools counted the guards that run the lines around a comment."""
    line = ROWS.splitlines()[9]
    indent = line[: len(line) - len(line.lstrip())]
    commented = ROWS.replace(line, f"{indent}# a reason\n\n{line}")
    base, head = make_tree(tmp_path / "base", ROWS), make_tree(tmp_path / "head", commented)
    change = source_change.read_change(base, head, ["python/sglang/srt/rows.py"])
    assert (change.old_lines, change.new_lines) == ({}, {})


def test_a_number_sign_in_a_string_is_no_comment(tmp_path: Path) -> None:
    base = make_tree(tmp_path / "base", 'SOURCE = """\n#define A 1\n"""\n')
    head = make_tree(tmp_path / "head", 'SOURCE = """\n#define A 2\n"""\n')
    change = source_change.read_change(base, head, ["python/sglang/srt/rows.py"])
    assert change.old_lines == change.new_lines == {"sglang.srt.rows": {2}}


def test_a_changed_constant_stands_for_the_lines_that_use_it(tmp_path: Path) -> None:
    base = make_tree(tmp_path / "base", ROWS)
    modules = ["sglang.srt.user"]
    lines = source_change.find_traced_lines(base, {"sglang.srt.rows": {1}}, modules)
    assert lines == {"sglang.srt.rows": {1, 10}, "sglang.srt.user": {5}}
    guards = [make_guard("test_width", user=[4, 5]), make_guard("test_table", rows=[6])]
    reached = changed_guards.count_reached_lines(guards, lines)
    assert reached == {"suites/a/test_a.py::test_width": 1}
    # OTHER, on line 2, is used nowhere.
    lines = source_change.find_traced_lines(base, {"sglang.srt.rows": {2}}, modules)
    assert changed_guards.count_reached_lines(guards, lines) == {}


def make_cell(release: str, state: str, fixed: Outcome, buggy: Outcome) -> CellResult:
    good = (fixed, buggy) == (PASSED, FAILED)
    cell = CellResult("g", "1", release, "cpu", state)
    cell.verdict = Verdict.PROVEN if good else Verdict.BROKEN
    outcomes = {"fixed": fixed, "buggy": buggy}
    cell.sides = {side: SideResult(side, end, headline=side) for side, end in outcomes.items()}
    return cell


@pytest.mark.parametrize(
    ("before", "after", "fails_now", "is_lost"),
    [
        (("fixed", PASSED, FAILED), ("fixed", PASSED, FAILED), False, False),
        # Its fix is taken back: proven on both, and it fails on the head as that is.
        (("fixed", PASSED, FAILED), ("buggy", PASSED, FAILED), True, False),
        # The change breaks what the guard checks: it fails with the fix as well.
        (("fixed", PASSED, FAILED), ("fixed", FAILED, FAILED), True, True),
        (("fixed", FAILED, FAILED), ("fixed", FAILED, FAILED), False, False),
        (("buggy", PASSED, FAILED), ("fixed", PASSED, FAILED), False, False),
    ],
)
def test_a_guard_that_fails_now_is_told_from_one_that_failed_before(
    before: tuple[str, Outcome, Outcome],
    after: tuple[str, Outcome, Outcome],
    fails_now: bool,
    is_lost: bool,
) -> None:
    cells = [make_cell("base", *before), make_cell("head", *after)]
    (change,) = changed_guards.compare_cells(cells, "base", "head")
    assert (change.fails_now, change.is_lost) == (fails_now, is_lost)
    assert change.headline == ("" if change.plain_after == "passed" and not is_lost else
                               after[0])  # fmt: skip


def make_fault(line: int) -> MutationFault:
    return MutationFault(
        id="f",
        operator="off-by-one",
        module="sglang.srt.rows",
        qualname="count_rows",
        path="sglang/srt/rows.py",
        kernel=False,
        start=0,
        end=1,
        line=line,
        first=line,
        last=line,
        before="a",
        after="b",
        words="one is added",
    )


@pytest.mark.parametrize(
    ("guards", "passed", "nearest", "nearness"),
    [
        ([make_guard("near", rows=[10])], ["near"], "near", "runs line 10 and passes"),
        ([make_guard("in", rows=[9]), make_guard("out", rows=[6])], [], "in", "line 9 of the func"),
        ([make_guard("out", rows=[6])], [], "out", "another function"),
        ([make_guard("far", user=[5])], [], "", "no guard runs a line of its module"),
    ],
)
def test_the_guard_nearest_to_a_fault_is_named(
    tmp_path: Path, guards: list[GuardCoverage], passed: list[str], nearest: str, nearness: str
) -> None:
    tree = make_tree(tmp_path / "head", ROWS)
    fate = Verdict.SURVIVED if passed else Verdict.UNREACHED
    result = FaultResult(make_fault(10), fate, passed=passed)
    name, how = nearest_guards.find_nearest_guard(result, guards, tree)
    assert name.rpartition("::")[2] == nearest
    assert nearness in how


def test_a_fault_in_a_package_is_in_its_init_file(tmp_path: Path) -> None:
    for name in ("base", "head"):
        (tmp_path / name / "sglang" / "srt").mkdir(parents=True)
        (tmp_path / name / "sglang" / "srt" / "__init__.py").write_text(f"{ROWS}# {name}\n")
    base, head = (FolderSourceTree(tmp_path / name, name) for name in ("base", "head"))
    change = source_change.read_change(base, head, ["python/sglang/srt/__init__.py"])
    fault = msgspec.structs.replace(make_fault(10), module="sglang.srt")
    result = FaultResult(fault, Verdict.SURVIVED, passed=["a"])
    (listed,) = nearest_guards.list_unnoticed_faults([result], [], head, change.locate)
    assert listed.path == "python/sglang/srt/__init__.py"


def test_a_test_without_a_toggle_is_compared_by_its_outcome() -> None:
    before = [make_guard("test_width"), make_guard("test_rows"), make_guard("test_other")]
    after = [make_guard("test_width"), make_guard("test_rows")]
    after[1].outcome, after[1].headline = FAILED, "2 != 3"
    names = [one.guard for one in before[:2]]
    changes = changed_guards.compare_plain_tests(before, after, names, [])
    width, rows = changes
    assert (width.plain_before, width.plain_after, width.fails_now) == ("passed", "passed", False)
    assert (rows.plain_after, rows.fails_now, rows.headline) == ("failed", True, "2 != 3")
    assert changed_guards.sort_changes(changes)[0] is rows
    # One that has a cell is judged by that.
    assert len(changed_guards.compare_plain_tests(before, after, names, [rows])) == 1
    (gone,) = changed_guards.compare_plain_tests(before[:1], [], names, [])
    assert gone.fails_now


def test_a_guard_that_passes_and_sees_something_else_is_worse() -> None:
    """A scheduler that lets in one request more gives the same answers."""
    before = GuardCoverage("suites/a.py::test_a", PASSED, 1.0, observed="program 0: 1+0 1+1 1+0")
    later = GuardCoverage("suites/a.py::test_a", PASSED, 1.0, observed="program 0: 1+0 2+0 2+0")

    def compare(after: GuardCoverage) -> list[tuple[bool, str]]:
        changes = changed_guards.compare_plain_tests([before], [after], ["suites/a.py::test_a"], [])
        return [(change.is_worse, change.difference) for change in changes]

    assert compare(before) == [(False, "")]
    (change,) = changed_guards.compare_plain_tests([before], [later], ["suites/a.py::test_a"], [])
    assert view.get_guard_mark(change).word == "moves"
    run = PrRun("r", "", "checkout", "a..b", "base", "head", guards=[change])
    assert run.headline == "other answers: test_a"
    (found,) = compare(later)
    assert found == (True, "program 0: word 4 on is 1+1 1+0 before and 2+0 2+0 now")
    later.outcome = FAILED
    assert compare(later) == [(True, "")]  # the failure says more


def test_what_a_test_records_for_reviews_is_part_of_its_result() -> None:
    item: Any = SimpleNamespace(
        user_properties=[("other", 1), (run_item.OBSERVED, "program 0: 1+0")]
    )
    listener: Any = SimpleNamespace(phases=[])
    side = run_item._run_and_classify(item, listener, False, lambda: None)
    assert side.observed == "program 0: 1+0"
