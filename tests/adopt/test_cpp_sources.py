"""Fixes of C++ and CUDA sources: adopted from a diff, and mended where the code has moved."""

from __future__ import annotations

import difflib
from pathlib import Path

import msgspec
import pytest
from followed import TOGGLES, load_trees
from memory import Memory

from harness.fixes.adopt import anchors, fix_diff, fix_parts, stale_repair
from harness.fixes.adopt.cpp_diff import CppModuleDiff
from harness.fixes.adopt.cpp_lines import render_tokens, tokenize_scope
from harness.fixes.adopt.edit_porting import has_same_effect, port_edits, resolve_edits
from harness.fixes.adopt.scope_text import make_source
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import Direction, ToggleChoice, make_plan
from harness.fixes.registry.schema import Symptom, ToggleEdit
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.fixes.registry.toggle_reader import read_toggle
from harness.fixes.registry.toggle_writer import format_toggle

PATH = "sglang/kernels/jit/csrc/rows.cuh"
KERNEL = """
template <typename T>
__global__ void copy_rows(T* out, const T* in, int n, int64_t stride) {
  const int row = blockIdx.x;
  if (threadIdx.x < n) {
    out[row * stride + threadIdx.x] = in[threadIdx.x];  // the row
  }
}
"""
FIXED = KERNEL.replace("const int row", "const int64_t row")


def compare_forms(fixed: str, buggy: str) -> list[tuple[str, str, str]]:
    spans, unresolved = CppModuleDiff(PATH, fixed, buggy).build_edits()
    assert not unresolved
    return [(s.edit.target or "", s.edit.fixed, s.edit.buggy) for s in spans]


def test_the_statement_that_differs_is_the_edit() -> None:
    assert compare_forms(FIXED, KERNEL) == [
        (f"{PATH}:copy_rows", "const int64_t row = blockIdx.x;", "const int row = blockIdx.x;")
    ]


def test_layout_and_comments_are_no_difference() -> None:
    spread = KERNEL.replace("in[threadIdx.x];", "in[\n      threadIdx.x];").replace("the row", "x")
    assert CppModuleDiff(PATH, spread, KERNEL).differences == []


def test_a_statement_that_is_new_comes_with_its_neighbour() -> None:
    barrier = KERNEL.replace("    out[row", "    __syncthreads();\n    out[row")
    [(target, fixed, buggy)] = compare_forms(barrier, KERNEL)
    assert target == f"{PATH}:copy_rows"
    store = "  out[row * stride + threadIdx.x] = in[threadIdx.x];"
    assert fixed == f"if (threadIdx.x < n) {{\n  __syncthreads();\n{store}"
    assert buggy == f"if (threadIdx.x < n) {{\n{store}"


def test_includes_new_functions_and_messages_are_left_out() -> None:
    fixed = f"#include <cstdint>\n\nint help(int a) {{ return a; }}\n{FIXED}"
    fixed += 'void check(bool ok) { RuntimeCheck(ok, "rows"); }\n'
    buggy = KERNEL + 'void check(bool ok) { RuntimeCheck(ok, "row"); }\n'
    diff = CppModuleDiff(PATH, fixed, buggy)
    reasons = [one.reason for one in diff.drop_inert_differences()]
    assert "words for a reader" in reasons
    assert len(diff.build_edits()[0]) == 1


def test_tokens_of_a_scope_are_its_text_again() -> None:
    newest = load_trees()[-1]
    for toggle in ("34459-hash-topk", "flashmla-idle-partitions"):
        module = TOGGLES[toggle].variants[0].targets[0].module
        source = newest.read(module)
        assert source is not None
        source_again = make_source(module, source.text)
        names = ["", *source_again.iterate_definition_names()]
        for scope in (scope for name in names for scope in source_again.find_scopes(name)):
            text = source.text[scope.tokens[scope.first].start : scope.tokens[scope.end - 1].end]
            assert render_tokens(tokenize_scope(scope, source.text)) == text


def port_fix(other_text: str, path: str = PATH) -> tuple[str, str] | str:
    """Port the fix of int64 rows to a release with other code; return its two texts."""
    edit = ToggleEdit("const int64_t row = blockIdx.x;", "const int row = blockIdx.x;",
                      f"{PATH}:copy_rows")  # fmt: skip
    origin = resolve_edits([edit], Memory({PATH: FIXED}, "0.5.9"))  # type: ignore[arg-type]
    assert origin is not None
    found = port_edits(origin, Memory({path: other_text}, "0.5.12"))  # type: ignore[arg-type]
    return found if isinstance(found, str) else found.texts[path]


@pytest.mark.parametrize(
    ("other_text", "path"),
    [
        (FIXED.replace("int64_t stride) {", "int64_t stride, bool last) {"), PATH),
        (FIXED, "sglang/jit_kernel/csrc/rows.cuh"),
        (FIXED.replace("int n,", "int count,").replace("< n)", "< count)"), PATH),
        (FIXED.replace("row = blockIdx.x", "row = blockIdx.y"), PATH),
    ],
    ids=["another parameter", "another folder", "a renamed name", "another value"],
)
def test_an_edit_follows_code_that_moved(other_text: str, path: str) -> None:
    assert port_fix(other_text, path) == (
        other_text,
        other_text.replace("const int64_t row", "const int row"),
    )


def test_an_edit_without_its_place_is_refused() -> None:
    reason = port_fix("__global__ void copy_rows(int* out) { out[0] = 1; }\n")
    assert isinstance(reason, str)
    assert "copy_rows" in reason


def test_a_fix_in_other_words_has_a_reason_where_another_kernel_is_like_it() -> None:
    """The kernel beside it has the words around the edit, and had them before: it is not moved."""
    twin = KERNEL.replace("copy_rows", "move_rows")
    edit = ToggleEdit("const int64_t row = blockIdx.x;", "const int row = blockIdx.x;",
                      f"{PATH}:copy_rows")  # fmt: skip
    origin = resolve_edits([edit], Memory({PATH: FIXED + twin}, "0.5.9"))  # type: ignore[arg-type]
    assert origin is not None
    other = "__global__ void copy_rows(int* out) { out[0] = 1; }\n" + twin
    reason = port_edits(origin, Memory({PATH: other}, "0.5.12"))  # type: ignore[arg-type]
    assert isinstance(reason, str)
    assert "copy_rows" in reason


def test_a_stale_toggle_gets_the_variant_that_a_person_wrote() -> None:
    """Its source moved from sglang/jit_kernel to sglang/kernels/jit in 0.5.18."""
    whole = TOGGLES["34459-hash-topk"]
    newer, older = whole.variants
    left = msgspec.structs.replace(older, releases=older.releases.split(",")[0])
    found = stale_repair.repair_toggle(
        msgspec.structs.replace(whole, variants=(left,)), load_trees()
    )
    assert found is not None
    moved = [tree for tree in load_trees() if newer.specifier.contains(tree.version or "0")]
    assert len(moved) >= 2
    for tree in moved:
        proposal = found.proposals[tree.name]
        wanted = resolve_edits(stale_repair.to_targeted_edits(newer), tree)
        assert wanted is not None
        assert not isinstance(proposal, str), proposal
        assert has_same_effect(proposal, wanted)
    repaired = found.repaired_toggle
    assert repaired is not None
    assert [v.releases for v in repaired.variants] == [older.releases, newer.releases]


def test_a_fix_is_adopted_from_its_diff(tmp_path: Path) -> None:
    """The diff is made of a toggle's two texts; adopting it gives that toggle's states."""
    known, newest = TOGGLES["flashmla-idle-partitions"], load_trees()[-1]
    (plan,) = make_plan([ToggleChoice(known, Direction.REVERT)], newest, newest.name).modules
    source = newest.read(plan.module)
    assert source is not None
    lines = difflib.unified_diff(
        plan.text.splitlines(True),
        source.text.splitlines(True),
        f"a/python/{plan.module}",
        f"b/python/{plan.module}",
    )
    patch = fix_diff.parse_diff("".join(lines), "FIX.diff")
    anchor = anchors.find_anchor(patch, load_trees(), "FIX.diff")
    (part,), left_out = fix_parts.split_fix(anchor)
    assert left_out == []
    story = fix_parts.FixDescription("some-fix", "t", Symptom.CRASH, family="cuda_kernels")
    adopted = fix_parts.adopt_part(part, anchor, story, load_trees(), ToggleCatalogue([])).toggle
    path = tmp_path / "some-fix.yaml"
    path.write_text(format_toggle(adopted))
    assert read_toggle(path) == adopted
    states = [find_toggle_status(adopted, tree).state for tree in load_trees()]
    assert states == [find_toggle_status(known, tree).state for tree in load_trees()]
    assert ToggleState.FIXED in states


def test_a_file_of_another_kind_says_what_is_adopted() -> None:
    text = "--- a/CMakeLists.txt\n+++ b/CMakeLists.txt\n@@ -1 +1 @@\n-a\n+b\n"
    patch = fix_diff.parse_diff(text, "x")
    assert patch.files[0].exclusion_reason == "no code of SGLang's runtime"
