"""Each changed line that holds code has the lines that decide whether it ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.releases.source_trees import FolderSourceTree
from harness.runs.pr import changed_functions, line_runs, source_change
from harness.runs.pr.changed_functions import FunctionLines
from harness.runs.pr.line_runs import LineRuns
from harness.store.pr.line_results import ReviewResult

MODULE, SOURCE = "sglang.srt.rows", "sglang/kernels/jit/csrc/rows.cuh"
PYTHON = '''\
import os

BLOCK = 64


def count(size, step=1):
    """Counts."""
    # a remark
    if size > BLOCK:
        return join(
            size,
            step,
        )
    return 0
'''
CUDA = """\
// rows
__global__ void copy(float* out, const float* in, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x];
}

void launch(float* out, const float* in, int n) {
  copy<<<1, n>>>(out, in, n);
}
"""


def make_tree(folder: Path, python: str, cuda: str) -> FolderSourceTree:
    for name, text in (("sglang/srt/rows.py", python), (SOURCE, cuda)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return FolderSourceTree(folder, folder.name)


def list_changed(
    tmp_path: Path, python: str = PYTHON, cuda: str = CUDA, *others: str
) -> tuple[list[FunctionLines], source_change.SourceChange]:
    base = make_tree(tmp_path / "base", PYTHON, CUDA)
    head = make_tree(tmp_path / "head", python, cuda)
    paths = ["python/sglang/srt/rows.py", f"python/{SOURCE}", *others]
    change = source_change.read_change(base, head, paths)
    return changed_functions.list_changed_functions(change, [MODULE]), change


@pytest.mark.parametrize(
    ("before", "after", "name", "deciding"),
    [
        ("            step,", "            step + 1,", "count", {10, 11, 12, 13}),
        ("step=1):", "step=2):", "count", {7, 8, 9, 10, 11, 12, 13, 14}),
        ("    return 0", "    return 1", "count", {14}),
        (
            "    # a remark\n    if size > BLOCK:",
            "    # wide\n\n    if size >= BLOCK:",
            "count",
            {10},
        ),
        ("size > BLOCK:", "size >= BLOCK:", "count", {9}),
        ("BLOCK = 64", "BLOCK = 32", "", {9}),
    ],
)
def test_a_changed_line_ran_if_a_line_that_decides_it_ran(
    tmp_path: Path, before: str, after: str, name: str, deciding: set[int]
) -> None:
    ((function,), _) = list_changed(tmp_path, PYTHON.replace(before, after))
    assert function.shown.name == name
    ((line,), removed) = function.new, function.removed
    assert line.deciding == {MODULE: deciding}
    assert removed == []
    assert {line[0] for line in function.shown.diff} == {"-", "+"}


@pytest.mark.parametrize(
    ("before", "after"),
    [("# a remark", "# another"), ('"""Counts."""', '"""Counts rows."""'), ("// rows", "// lines")],
)
def test_what_holds_no_code_is_no_changed_line(tmp_path: Path, before: str, after: str) -> None:
    functions, _ = list_changed(
        tmp_path, PYTHON.replace(before, after), CUDA.replace(before, after)
    )
    assert functions == []


@pytest.mark.parametrize(
    ("before", "after", "name", "deciding"),
    [
        ("threadIdx.x < n", "threadIdx.x <= n", "copy", {2, 3, 4}),
        ("<<<1, n>>>", "<<<1, 32>>>", "launch", set(range(1, 10))),
    ],
)
def test_a_line_of_cuda_is_decided_by_its_kernel_and_host_code_by_its_file(
    tmp_path: Path, before: str, after: str, name: str, deciding: set[int]
) -> None:
    ((function,), change) = list_changed(tmp_path, PYTHON, CUDA.replace(before, after))
    assert (function.shown.name, function.shown.path) == (name, f"python/{SOURCE}")
    assert function.new[0].deciding == {SOURCE: deciding}
    assert [one.module for one in change.files] == [SOURCE]


def judge_first(
    functions: list[FunctionLines], runs: LineRuns, has_toolkit: bool = True
) -> FunctionLines:
    line_runs.note_runs(functions, runs, has_toolkit)
    return functions[0]


def test_a_line_that_nothing_ran_is_named_with_what_comes_nearest(tmp_path: Path) -> None:
    functions, _ = list_changed(tmp_path, PYTHON.replace("    return 0", "    return 1"))
    runs = LineRuns()
    runs.add(True, "zoo llama", {MODULE: [9, 10]})
    shown = judge_first(functions, runs).shown
    assert shown.result is ReviewResult.NOT_RUN
    assert shown.list_problems() == [
        "not run: python/sglang/srt/rows.py:14: return 1; nothing ran it; zoo llama runs 2 other "
        "lines of the file"
    ]


def test_a_line_that_an_item_ran_on_the_head_is_no_difference(tmp_path: Path) -> None:
    functions, _ = list_changed(tmp_path, PYTHON.replace("    return 0", "    return 1"))
    runs = LineRuns()
    runs.add(False, "zoo gemma2", {MODULE: [14]})  # the line of the base is another one
    runs.add(True, "zoo llama", {MODULE: [14]})
    shown = judge_first(functions, runs).shown
    assert (shown.result, shown.ran_by) == (ReviewResult.SAME, ["zoo llama"])


def test_a_removed_line_ran_if_it_ran_on_the_base(tmp_path: Path) -> None:
    functions, _ = list_changed(tmp_path, PYTHON.replace("    return 0\n", ""))
    runs = LineRuns()
    runs.add(True, "zoo llama", {MODULE: [9]})
    assert judge_first(functions, runs).shown.unrun[0].is_removed
    runs.add(False, "zoo llama", {MODULE: [14]})
    functions, _ = list_changed(tmp_path, PYTHON.replace("    return 0\n", ""))
    assert judge_first(functions, runs).shown.result is ReviewResult.SAME


def test_a_cuda_line_without_a_toolkit_says_what_it_needs(tmp_path: Path) -> None:
    functions, _ = list_changed(tmp_path, PYTHON, CUDA.replace("x < n", "x <= n"))
    shown = judge_first(functions, LineRuns(), has_toolkit=False).shown
    assert "unfix releases add cuda-toolkit" in shown.list_problems()[0]


@pytest.mark.parametrize(
    ("path", "is_unread"),
    [
        ("sgl-kernel/csrc/rows.cu", True),
        ("python/sglang/srt/layers/moe/configs/E=8.json", True),
        ("sgl-router/src/main.rs", True),
        ("test/registered/test_rows.py", False),
        ("docs/rows.md", False),
        (".github/workflows/rows.yml", False),
        ("README.md", False),
    ],
)
def test_a_file_that_a_server_reads_and_nothing_here_runs_is_not_run(
    tmp_path: Path, path: str, is_unread: bool
) -> None:
    functions, change = list_changed(tmp_path, PYTHON, CUDA, path)
    assert functions == []
    unread = list(changed_functions.list_unread_files(change))
    assert [one.path for one in unread] == ([path] if is_unread else [])
    assert all(one.result is ReviewResult.NOT_RUN for one in unread)


def test_a_line_that_deployments_alone_ran_is_not_run_as_these_compare_no_answers(
    tmp_path: Path,
) -> None:
    functions, _ = list_changed(tmp_path, PYTHON.replace("return 0", "return 1"))
    runs = LineRuns()
    runs.add(True, "rehearse llama", {MODULE: [14]})
    shown = judge_first(functions, runs).shown
    assert shown.result is ReviewResult.NOT_RUN
    assert shown.nearest == "rehearse llama ran it, which compares no answers"
    functions, _ = list_changed(tmp_path / "again", PYTHON.replace("return 0", "return 1"))
    runs.add(True, "zoo llama", {MODULE: [14]})
    assert judge_first(functions, runs).shown.result is ReviewResult.SAME
