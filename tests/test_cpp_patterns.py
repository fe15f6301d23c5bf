"""Patterns over C++ and CUDA: what they match, bind and write; and toggles with such a target."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory import Memory, write_toggle

from harness.core.cpp_scopes import CppSource
from harness.core.errors import UnfixError
from harness.fixes.cpp_patterns import CppPattern
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import Direction, ToggleChoice, format_toggle_diff, make_plan
from harness.fixes.registry.toggle_reader import read_toggle

PATH = "sglang/kernels/jit/csrc/toy.cuh"
FIXED = """
template <int kSize>
__global__ void __launch_bounds__(128) copy_rows(const Params params) {
  const int row = blockIdx.x;
  if (row >= params.rows) return;  // rows of padding
  #pragma unroll
  for (int i = threadIdx.x; i < kSize; i += 128) {
    params.out[int64_t(row) * kSize + i] = params.in[int64_t(row) * kSize + i];
  }
}
inline void launch(int rows) { copy_rows<4><<<rows, 128>>>(Params{}); }
"""


def find_matches(pattern: str, code: str, name: str = "") -> list[tuple[str, dict[str, str]]]:
    source = CppSource("a.cuh", "a.cuh", code)
    matches = (
        m for scope in source.find_scopes(name) for m in CppPattern(pattern).find(scope, code)
    )
    return [(code[match.start : match.end], match.bindings) for match in matches]


@pytest.mark.parametrize(
    ("pattern", "bindings"),
    [
        ("if ($ROW >= params.rows) return;", {"ROW": "row"}),
        ("if($ROW>=params.rows)return;", {"ROW": "row"}),
        ("copy_rows<$N><<<$$$SHAPE>>>($$$A);", {"N": "4", "SHAPE": "rows, 128", "A": "Params{}"}),
        ("for ($$$HEAD) { $$$BODY }", {}),
        ("#pragma unroll", {}),
    ],
)
def test_a_pattern_matches_by_tokens(pattern: str, bindings: dict[str, str]) -> None:
    ((_, found),) = find_matches(pattern, FIXED)
    assert {name: found[name] for name in bindings} == bindings


@pytest.mark.parametrize(
    ("pattern", "code", "matches"),
    [
        # A metavariable binds as little as it can, keeps brackets whole and stops at a comma.
        ("$A * heads", "f(x + y * heads);", [("y * heads", {"A": "y"})]),
        ("f($A)", "f((a, b));", [("f((a, b))", {"A": "(a, b)"})]),
        ("f($A)", "f(a, b);", []),
        ("g($A, $A)", "g(x[0], x[1]); g(x[0], x[ 0 ]);", [("g(x[0], x[ 0 ])", {"A": "x[0]"})]),
        # A word is matched whole, and comments and strings hold no code.
        ("row = 1;", "narrow = 1;", []),
        ("x + 1", '// x + 1\n/* x + 1 */ "x + 1"; R"(x + 1)";', []),
    ],
)
def test_what_a_pattern_matches_and_binds(
    pattern: str, code: str, matches: list[tuple[str, dict[str, str]]]
) -> None:
    assert find_matches(pattern, code) == matches


def test_an_empty_list_takes_its_comma_along() -> None:
    code = "f(a);"
    scope = CppSource("a.cuh", "a.cuh", code).find_scopes("")[0]
    (match,) = CppPattern("f($A, $$$REST)").find(scope, code)
    assert CppPattern("g($A, $$$REST)").render(match, code) == "g(a)"


@pytest.fixture
def toggle_file(tmp_path: Path) -> Path:
    return write_toggle(
        tmp_path / "toggles",
        "toy-padding",
        f"{PATH}:copy_rows",
        "if ($ROW >= params.rows) return;",
        "if ($ROW > params.rows) return;",
        ">=0.5",
    )


def test_a_toggle_of_a_cuda_source_is_reverted_and_enabled_exactly(toggle_file: Path) -> None:
    toggle = read_toggle(toggle_file)
    fixed = Memory({PATH: FIXED})
    assert find_toggle_status(toggle, fixed).state is ToggleState.FIXED
    (patched,) = make_plan([ToggleChoice(toggle, Direction.REVERT)], fixed, "1").modules
    assert patched.text == FIXED.replace("row >= params", "row > params")
    assert [(site.line, site.target) for site in patched.sites] == [(5, f"{PATH}:copy_rows")]
    buggy = Memory({PATH: patched.text})
    assert find_toggle_status(toggle, buggy).state is ToggleState.BUGGY
    (back,) = make_plan([ToggleChoice(toggle, Direction.ENABLE)], buggy, "1").modules
    assert back.text == FIXED


def test_its_diff_names_the_source_by_its_path(toggle_file: Path) -> None:
    sources = Memory({PATH: FIXED})
    diff = format_toggle_diff(find_toggle_status(read_toggle(toggle_file), sources), sources)
    assert f"--- a/{PATH}" in diff


def test_code_that_has_moved_on_is_stale_with_the_nearest_lines(toggle_file: Path) -> None:
    moved = Memory({PATH: FIXED.replace("row >= params.rows", "row >= params.row_count")})
    status = find_toggle_status(read_toggle(toggle_file), moved)
    assert status.state is ToggleState.STALE
    assert "+if (row >= params.row_count) return;" in status.nearest
    renamed = Memory({PATH: FIXED.replace("copy_rows", "copy_all_rows")})
    status = find_toggle_status(read_toggle(toggle_file), renamed)
    assert f"near it: {PATH}:copy_all_rows" in status.nearest
    elsewhere = Memory({PATH.replace("toy", "toys"): FIXED})
    status = find_toggle_status(read_toggle(toggle_file), elsewhere)
    assert f"may have moved to: {PATH.replace('toy', 'toys')}:copy_rows" in status.nearest


@pytest.mark.parametrize(
    ("target", "fixed", "buggy", "problem"),
    [
        (PATH, "f(a)", "f( a )", "are the same"),
        (PATH, "f($A)", "f($B)", "same metavariables"),
        (PATH, "a + b", "a + b + c", "also matches"),
        (PATH, "$A", "$A + 1", "matches any code"),
        (PATH, "if ($$$A) {", "if ($$$A)", r"brackets unpaired: '{' in fixed, none in buggy"),
        ("sglang/kernels/toy.txt", "a", "b", r"a C\+\+ source's path"),
        (f"{PATH}:Kernel::run", "a", "b", r"a C\+\+ source's path"),
    ],
)
def test_a_form_that_cannot_work_is_refused(
    tmp_path: Path, target: str, fixed: str, buggy: str, problem: str
) -> None:
    with pytest.raises(UnfixError, match=problem):
        read_toggle(write_toggle(tmp_path, "toy-refused", target, fixed, buggy))
