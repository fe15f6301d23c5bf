"""Stale cells mended: from the nearest release that is well, followed to the one that is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from packaging.version import Version

from harness.adopt import course
from harness.adopt.course import Course
from harness.adopt.following import FLIP, Known, again, follow, known, wanting
from harness.matching.states import State, find
from harness.registry import writing
from harness.registry.schema import Edit, Toggle, Variant
from harness.releases.sources import SourceTree

OWN = "a form of its own holds there, outside of its range"


@dataclass(frozen=True)
class Mended:
    """A toggle with its stale cells, what is proposed for each, and the file that it would be."""

    toggle: Toggle
    proposals: dict[str, Known | str]  # by release: the forms, or why there are none
    after: Toggle | None


def mend(
    toggle: Toggle, trees: Sequence[SourceTree], others: Sequence[SourceTree] = ()
) -> Mended | None:
    """Proposals for the stale cells of a toggle; None where there are none.

    `others` are releases that are not asked about, and well: from them the stale ones are told.
    """
    findings = {tree.name: find(toggle, tree) for tree in trees}
    stale = [tree for tree in trees if findings[tree.name].state is State.STALE]
    if not stale:
        return None
    findings |= {tree.name: find(toggle, tree) for tree in others}
    ordered = sorted([*trees, *others], key=lambda tree: tree.version or Version("0"))
    cells: dict[str, Known | str] = {}
    for tree in ordered:
        found = findings[tree.name]
        if found.state in FLIP and found.variant is not None:
            cell = known(with_targets(found.variant), tree)
            cells[tree.name] = cell if cell is not None else "it cannot be made"
    proposals: dict[str, Known | str] = {}
    for tree in sorted(stale, key=lambda tree: _distance(tree, ordered, cells)):
        there = _nearest(tree, ordered, cells)
        proposals[tree.name] = _own(toggle, tree, there) or (
            follow(there, tree) if there else "no release near it is well"
        )
        cells[tree.name] = proposals[tree.name]
    made = [name for name, cell in proposals.items() if isinstance(cell, Known)]
    return Mended(toggle, proposals, _after(toggle, ordered, cells) if made else None)


def _own(toggle: Toggle, tree: SourceTree, near: Known | None) -> Known | None:
    """The one of its own variants that holds there outside of its range, if it is one."""
    held = [known(with_targets(v), tree, (OWN,)) for v in toggle.variants]
    found = [cell for cell in held if cell is not None]
    if len(found) != 1 or wanting(found[0]):
        return None
    lost = near is not None and near.state is State.FIXED and found[0].state is State.BUGGY
    return None if near is not None and lost and again(near, tree) else found[0]


def with_targets(variant: Variant) -> tuple[Edit, ...]:
    return tuple(
        Edit(fixed=edit.fixed, buggy=edit.buggy, target=str(variant.target_of(edit)))
        for edit in variant.edits
    )


def _distance(tree: SourceTree, ordered: list[SourceTree], cells: dict[str, Known | str]) -> int:
    here = ordered.index(tree)
    well = [n for n, t in enumerate(ordered) if isinstance(cells.get(t.name), Known)]
    return min((abs(n - here) for n in well), default=len(ordered))


def _nearest(
    tree: SourceTree, ordered: list[SourceTree], cells: dict[str, Known | str]
) -> Known | None:
    """The nearest release that is well, the older of two: code moves forward."""
    here = ordered.index(tree)
    well = [(abs(n - here), n, cells[t.name]) for n, t in enumerate(ordered) if t.name in cells]
    found = sorted((d, n) for d, n, cell in well if isinstance(cell, Known))
    cell = cells[ordered[found[0][1]].name] if found else None
    return cell if isinstance(cell, Known) else None


def _after(toggle: Toggle, ordered: list[SourceTree], cells: dict[str, Known | str]) -> Toggle:
    """The toggle with what is proposed, its own variants as they were but for their ranges."""
    own = {with_targets(variant): variant for variant in toggle.variants}
    run = Course(tuple((tree, cells.get(tree.name, "absent")) for tree in ordered))
    made = [
        msgspec.structs.replace(own.get(with_targets(one), one), releases=one.releases)
        for one in course.variants(run, own)
    ]
    return msgspec.structs.replace(toggle, variants=tuple(made))


def written(before: str, toggle: Toggle, after: Toggle, starts: Sequence[int]) -> str:
    """The text of the file with its new variants, all else in it as it was.

    `starts` are the lines, from 1, on which its variants begin.
    """
    lines = before.rstrip("\n").split("\n")
    ends = [*(start - 1 for start in starts[1:]), len(lines)]
    blocks = {
        with_targets(variant): lines[start - 1 : end]
        for variant, start, end in zip(toggle.variants, starts, ends, strict=True)
    }
    result = lines[: starts[0] - 1]
    for variant in after.variants:
        block = blocks.get(with_targets(variant))
        if block is None:
            result += writing.variant_lines(variant)
        else:
            said = re.compile(r"(releases:\s*).*")
            result += [said.sub(rf'\g<1>"{variant.releases}"', block[0]), *block[1:]]
    return "\n".join(result) + "\n"
