"""A name that changed along with a fix is not part of the fix."""

from __future__ import annotations

from harness.fixes.adopt.module_diff import ModuleDiff
from harness.fixes.adopt.rename_detection import undo_renames

BUGGY = """def f(rows, accept_length, other):
    first = accept_length[0]
    width = rows * first
    return make(width, accept_length, x.accept_length)
"""
FIXED = """def f(rows, accept_len, other):
    first = accept_len[0]
    width = rows * first.to(int64)
    return make(width, accept_len, x.accept_length)
"""


def test_what_is_left_is_the_fix() -> None:
    buggy, descriptions = undo_renames(FIXED, BUGGY)
    assert descriptions == ["f: accept_length is accept_len"]
    edits, untold = ModuleDiff("m", FIXED, buggy).build_edits()
    [found] = edits
    assert (found.edit.fixed, found.edit.buggy) == ("rows * first.to(int64)", "rows * first")
    assert not untold


def test_another_value_in_the_place_of_one_is_no_rename() -> None:
    fixed = BUGGY.replace("rows * first", "rows * other")
    assert undo_renames(fixed, BUGGY) == (BUGGY, [])
    taken = BUGGY.replace("accept_length[0]", "padded[0]")
    assert undo_renames(taken, BUGGY)[1] == []
