"""Proposes new variants for stale toggles: ports edits from the nearest release that has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from packaging.version import Version

from harness.fixes.adopt import release_timeline
from harness.fixes.adopt.edit_porting import (
    ResolvedEdits,
    explain_fix_present,
    find_missing_name,
    port_edits,
    resolve_edits,
)
from harness.fixes.adopt.release_timeline import EditTimeline
from harness.fixes.matching.toggle_status import ToggleState, find_toggle_status
from harness.fixes.patch_plan import FLIP_DIRECTIONS
from harness.fixes.registry import toggle_writer
from harness.fixes.registry.schema import Toggle, ToggleEdit, ToggleVariant
from harness.releases.source_trees import SourceTree

OWN_VARIANT_REMARK = "a form of its own holds there, outside of its range"


@dataclass(frozen=True)
class ToggleRepair:
    """A toggle, a proposal for each stale release, and the repaired toggle."""

    toggle: Toggle
    proposals: dict[str, ResolvedEdits | str]  # by release: edits, or a reason for having none
    repaired_toggle: Toggle | None


def repair_toggle(
    toggle: Toggle, trees: Sequence[SourceTree], healthy_trees: Sequence[SourceTree] = ()
) -> ToggleRepair | None:
    """Propose edits for the stale releases of a toggle; None if none is stale.

    `healthy_trees` are further releases to port edits from.
    """
    findings = {tree.name: find_toggle_status(toggle, tree) for tree in trees}
    stale = [tree for tree in trees if findings[tree.name].state is ToggleState.STALE]
    if not stale:
        return None
    findings |= {tree.name: find_toggle_status(toggle, tree) for tree in healthy_trees}
    # A checkout without a version is newer than every release.
    ordered = sorted(
        [*trees, *healthy_trees],
        key=lambda tree: (tree.version is None, tree.version or Version("0")),
    )
    cells: dict[str, ResolvedEdits | str] = {}
    for tree in ordered:
        found = findings[tree.name]
        if found.state in FLIP_DIRECTIONS and found.variant is not None:
            cell = resolve_edits(to_targeted_edits(found.variant), tree)
            cells[tree.name] = cell if cell is not None else "it cannot be made"
    proposals: dict[str, ResolvedEdits | str] = {}
    for tree in sorted(stale, key=lambda tree: _measure_distance(tree, ordered, cells)):
        nearest_edits = _find_nearest(tree, ordered, cells)
        proposals[tree.name] = _find_own_variant(toggle, tree, nearest_edits) or (
            port_edits(nearest_edits, tree) if nearest_edits else "no release near it is well"
        )
        cells[tree.name] = proposals[tree.name]
    resolved_names = [name for name, cell in proposals.items() if isinstance(cell, ResolvedEdits)]
    return ToggleRepair(
        toggle, proposals, _build_repaired(toggle, ordered, cells) if resolved_names else None
    )


def _find_own_variant(
    toggle: Toggle, tree: SourceTree, nearest: ResolvedEdits | None
) -> ResolvedEdits | None:
    """Find the only variant of the toggle that matches outside of its range, if there is one."""
    resolved = [
        resolve_edits(to_targeted_edits(v), tree, (OWN_VARIANT_REMARK,)) for v in toggle.variants
    ]
    matching = [edits for edits in resolved if edits is not None]
    if len(matching) != 1 or find_missing_name(matching[0]):
        return None
    if (
        nearest is not None
        and nearest.state is ToggleState.FIXED
        and matching[0].state is ToggleState.BUGGY
        and explain_fix_present(nearest, tree)
    ):
        return None
    return matching[0]


def to_targeted_edits(variant: ToggleVariant) -> tuple[ToggleEdit, ...]:
    return tuple(
        ToggleEdit(fixed=edit.fixed, buggy=edit.buggy, target=str(variant.get_target(edit)))
        for edit in variant.edits
    )


def _measure_distance(
    tree: SourceTree, ordered: list[SourceTree], cells: dict[str, ResolvedEdits | str]
) -> int:
    position = ordered.index(tree)
    healthy_positions = [
        n for n, t in enumerate(ordered) if isinstance(cells.get(t.name), ResolvedEdits)
    ]
    return min((abs(n - position) for n in healthy_positions), default=len(ordered))


def _find_nearest(
    tree: SourceTree, ordered: list[SourceTree], cells: dict[str, ResolvedEdits | str]
) -> ResolvedEdits | None:
    """Find the edits of the nearest healthy release; of two equally near, the older one."""
    position = ordered.index(tree)
    healthy = [
        (abs(number - position), number, cell)
        for number, release_tree in enumerate(ordered)
        if isinstance(cell := cells.get(release_tree.name), ResolvedEdits)
    ]
    return min(healthy, key=lambda entry: entry[:2])[2] if healthy else None


def _build_repaired(
    toggle: Toggle, ordered: list[SourceTree], cells: dict[str, ResolvedEdits | str]
) -> Toggle:
    """Build the toggle with the proposed variants; existing variants change only their ranges."""
    existing_variants = {to_targeted_edits(variant): variant for variant in toggle.variants}
    run = EditTimeline(tuple((tree, _find_cell(tree, ordered, cells)) for tree in ordered))
    variants = [
        msgspec.structs.replace(
            existing_variants.get(to_targeted_edits(variant), variant), releases=variant.releases
        )
        for variant in release_timeline.build_variants(run, existing_variants)
    ]
    return msgspec.structs.replace(toggle, variants=tuple(variants))


def _find_cell(
    tree: SourceTree, ordered: list[SourceTree], cells: dict[str, ResolvedEdits | str]
) -> ResolvedEdits | str:
    """Return a release's edits. One without a proposal stays in the range of its neighbour.

    Its toggle is stale there. Outside of every range it would be absent, which nobody looks into.
    """
    cell = cells.get(tree.name, "absent")
    if tree.name in cells and isinstance(cell, str):
        return _find_nearest(tree, ordered, cells) or cell
    return cell


def render_repaired_file(
    text: str, toggle: Toggle, repaired_toggle: Toggle, start_lines: Sequence[int]
) -> str:
    """Render the file with the repaired variants; every other line is unchanged.

    `start_lines` are the lines, from 1, on which its variants begin.
    """
    lines = text.rstrip("\n").split("\n")
    ends = [*(start - 1 for start in start_lines[1:]), len(lines)]
    blocks = {
        to_targeted_edits(variant): lines[start - 1 : end]
        for variant, start, end in zip(toggle.variants, start_lines, ends, strict=True)
    }
    result = lines[: start_lines[0] - 1]
    for variant in repaired_toggle.variants:
        block = blocks.get(to_targeted_edits(variant))
        if block is None:
            result += toggle_writer.format_variant(variant)
        else:
            releases_line = re.compile(r"(releases:\s*).*")
            result += [releases_line.sub(rf'\g<1>"{variant.releases}"', block[0]), *block[1:]]
    return "\n".join(result) + "\n"
