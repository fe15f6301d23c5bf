"""From the difference between a toggle's two forms on one release to its states on all of them.

`bench/cases/adopting.py` does this for the whole registry; each toggle here needs a different step.
"""

from __future__ import annotations

import pytest
from followed import TOGGLES, load_trees

from bench.cases import adopting as bench
from harness.fixes.adopt import edit_porting, inlining, stale_repair
from harness.fixes.adopt.code_tokens import render_tokens, tokenize_code
from harness.fixes.matching.toggle_status import ToggleState

NEEDS = {
    "window-one-too-wide": "nothing: the same in all",
    "27338": "a helper written out, and a local variable",
    "25418-large-query": "a constant written out",
    "24617": "the code that it removes differs",
    "23268-fused-qk-split": "another operand, other names",
    "20606-offset-check": "another class in another module, one place less",
    "28788-stage1": "a cast to 32 bits that older code has by not casting",
    "30859-dsv4-paged": "a place told by what stands right before it, one place less",
    "delta-chunk-padded-rows": "a name that older code has not: its value is written out",
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_toggle_told_anew_has_the_same_states(name: str) -> None:
    assert bench.round_trip(TOGGLES[name], load_trees()) == "equal"


def test_a_line_of_its_own_that_says_what_the_fix_says_is_no_bug() -> None:
    """0.5.23 has the older buggy form, and the fix, a cast, a few lines below."""
    older = next(tree for tree in load_trees() if tree.name == "0.5.20")
    variant = next(v for v in TOGGLES["28788-stage1"].variants if v.specifier.contains("0.5.20"))
    resolved = edit_porting.resolve_edits(stale_repair.to_targeted_edits(variant), older)
    assert resolved is not None
    assert resolved.state is ToggleState.FIXED
    found = edit_porting.port_edits(resolved, load_trees()[-1])
    assert isinstance(found, str)
    assert "so is what the fix puts in" in found


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("tl.program_id(0)", ""),
        ("tl.arange(0, max(N, 1))", ""),
        ("tl.load(rows)", ".to(tl.int32)"),
        ("tl.load(rows + tl.arange(0, N))", ".to(tl.int32)"),
    ],
)
def test_what_a_tensor_may_hold_in_64_bits_is_no_bug_without_a_cast(value: str, left: str) -> None:
    for form in ("row = {}{}", "row = {}\nrow = row{}"):
        fixed, buggy, plain = (
            tokenize_code(
                f"def f():\n    {form.format(value, cast)}".replace("\nrow", "\n    row"), ""
            )
            for cast in (".to(tl.int64)", ".to(tl.int32)", left)
        )
        dropped = inlining.drop_int32_casts(fixed, buggy)
        assert render_tokens(dropped, "") == render_tokens(plain, "")
