"""Merges two releases' forms of one edit: parts that differ become metavariables.

Example: `f(rows, self.width)` and `f(rows, width)` become `f(rows, $WIDTH)`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ast_grep_py import SgNode, SgRoot

from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.fixes.adopt.module_diff import find_differences
from harness.fixes.patterns import (
    METAVARIABLE_CHARACTER,
    find_metavariables,
    get_span,
    to_parsable_code,
)
from harness.fixes.registry.schema import CodeTarget, ToggleEdit
from harness.fixes.registry.toggle_reader import find_edit_problem


def generalize_edits(
    ours: Sequence[ToggleEdit], other_edits: Sequence[ToggleEdit]
) -> tuple[ToggleEdit, ...] | None:
    """Return edits that match both, if the forms differ only in values that both sides share."""
    if [one.target for one in ours] != [edit.target for edit in other_edits]:
        return None
    found = [_generalize_edit(a, b) for a, b in zip(ours, other_edits, strict=True)]
    return None if None in found else tuple(edit for edit in found if edit is not None)


def _generalize_edit(ours: ToggleEdit, other_edits: ToggleEdit) -> ToggleEdit | None:
    if (ours.fixed, ours.buggy) == (other_edits.fixed, other_edits.buggy):
        return ours
    if is_cpp_path(CodeTarget.parse(ours.target or "").module):
        return None  # metavariables are found in syntax trees
    names: dict[tuple[str, str], str] = {}
    used = find_metavariables(ours.fixed)
    forms, pairs = [], []
    for mine, other in ((ours.fixed, other_edits.fixed), (ours.buggy, other_edits.buggy)):
        holes = _find_holes(mine, other)
        if holes is None:
            return None
        for node, other_node in holes:
            names.setdefault((node.text(), other_node.text()), _make_metavariable(node, used))
        pairs.append({(node.text(), other_node.text()) for node, other_node in holes})
        code = to_parsable_code(mine)
        for node, other_node in sorted(holes, key=lambda hole: -get_span(hole[0])[0]):
            start, end = get_span(node)
            code = f"{code[:start]}${names[node.text(), other_node.text()]}{code[end:]}"
        forms.append(code.replace(METAVARIABLE_CHARACTER, "$"))
    edit = ToggleEdit(fixed=forms[0], buggy=forms[1], target=ours.target)
    try:
        return (
            edit
            if pairs[0] == pairs[1] and not find_edit_problem(edit, edit.target or "")
            else None
        )
    except UnfixError:  # not a valid pattern
        return None


def _find_holes(mine: str, other: str) -> list[tuple[SgNode, SgNode]] | None:
    """Find the pairs of nodes in which two patterns differ; None unless all are values."""
    roots = [SgRoot(to_parsable_code(text), "python").root() for text in (mine, other)]
    holes = []
    for place in find_differences(*roots):
        if len(place.fixed) != 1 or len(place.buggy) != 1:
            return None
        fixed_node, other_node = place.fixed[0], place.buggy[0]
        if not all(_is_value(node) for node in (fixed_node, other_node)):
            return None
        holes.append((fixed_node, other_node))
    return holes


def _is_value(node: SgNode) -> bool:
    """Return whether a metavariable can replace the node: an operand or an argument."""
    return node.is_named() and node.kind() in (
        "identifier", "attribute", "call", "subscript", "integer", "string", "binary_operator",
        "comparison_operator", "parenthesized_expression", "true", "false", "none",
    )  # fmt: skip


def _make_metavariable(node: SgNode, used: set[str]) -> str:
    words = re.findall(r"[A-Za-z]\w*", node.text())
    stem = words[-1].upper() if words else "VALUE"
    name, number = stem, 2
    while name in used:
        name, number = f"{stem}_{number}", number + 1
    used.add(name)
    return name
