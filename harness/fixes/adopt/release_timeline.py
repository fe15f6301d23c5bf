"""Ports the edits of a fix from one release to all others, and groups them into variants.

Example: an edit whose target is renamed in 0.5.14 gives two variants, `>=0.5.9,<0.5.14` and
`>=0.5.14`. Two neighbouring releases share a variant if one pair of forms has the same effect on
both, with metavariables for the parts in which they differ if necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from harness.fixes.adopt.edit_porting import (
    ResolvedEdits,
    has_same_effect,
    port_edits,
    resolve_edits,
)
from harness.fixes.adopt.generalization import generalize_edits
from harness.fixes.registry.schema import ToggleEdit, ToggleVariant
from harness.releases.source_trees import SourceTree


@dataclass(frozen=True)
class EditTimeline:
    """The edits on each release, oldest first; a reason for each release without them."""

    cells: tuple[tuple[SourceTree, ResolvedEdits | str], ...]

    @property
    def resolved_edits(self) -> list[ResolvedEdits]:
        return [cell for _, cell in self.cells if isinstance(cell, ResolvedEdits)]


def trace_edits(
    anchor: ResolvedEdits,
    trees: Sequence[SourceTree],
    report: Callable[[int], object] = lambda done: None,
) -> EditTimeline:
    """Port edits release by release, forwards and backwards, each from the last that has them.

    The anchor is one of the releases, or a commit between two of them. `report` gets the number of
    releases that are done.
    """
    anchor_key = (anchor.tree.version, anchor.tree.name)
    cells: dict[str, ResolvedEdits | str] = {}
    version = anchor.tree.version
    older = [t for t in trees if version is None or (t.version and t.version <= version)]
    newer = [t for t in trees if t not in older]
    for direction in (list(reversed(older)), newer):
        last = anchor
        for tree in direction:
            if (tree.version, tree.name) == anchor_key:
                cells[tree.name] = anchor
                continue
            ported = port_edits(last, tree)
            cells[tree.name] = ported
            last = ported if isinstance(ported, ResolvedEdits) else last
            report(len(cells))
    return EditTimeline(tuple((tree, cells[tree.name]) for tree in trees))


@dataclass
class _VariantRange:
    """Consecutive releases with the same forms."""

    first_release: str
    end_release: str | None  # the first release after the range; None if it is open
    edits: tuple[ToggleEdit, ...]
    cells: list[ResolvedEdits]


def build_variants(
    course: EditTimeline, separate: Collection[tuple[ToggleEdit, ...]] = ()
) -> tuple[ToggleVariant, ...]:
    """Build variants from a timeline; two sets of edits that are both `separate` are not merged."""
    runs: list[_VariantRange] = []
    open_run = False
    for tree, cell in course.cells:
        name = name_in_range(tree, [each for each, _ in course.cells])
        if runs and open_run:
            runs[-1].end_release = name
        if isinstance(cell, str):
            open_run = False
            continue
        merged = _merge_edits(runs[-1], cell, separate) if runs and open_run else None
        if merged is not None:
            runs[-1].edits = merged
            runs[-1].cells.append(cell)
            runs[-1].end_release = None
        else:
            runs.append(_VariantRange(name, None, cell.edits, [cell]))
        open_run = True
    return tuple(
        build_variant(
            run.edits,
            f">={run.first_release}" + (f",<{run.end_release}" if run.end_release else ""),
        )
        for run in runs
    )


def name_in_range(tree: SourceTree, trees: Sequence[SourceTree]) -> str:
    """Return the version of a tree as a range has it.

    A range cannot name the local part of a version, such as a checkout's commit. A checkout without
    a version is behind the newest release: behind 0.5.23 it is 0.5.23.post1, and behind 0.5.24rc1
    it is 0.5.24. That is provisional: a release that comes later may have this name.
    """
    if tree.version is not None:
        return tree.version.public
    newest = max((each.version for each in trees if each.version), default=None)
    if newest is None:
        return tree.name
    if newest.is_prerelease:
        return newest.base_version
    return f"{newest.base_version}.post{(newest.post or 0) + 1}"


def _merge_edits(
    run: _VariantRange, cell: ResolvedEdits, separate: Collection[tuple[ToggleEdit, ...]]
) -> tuple[ToggleEdit, ...] | None:
    """Find edits with the same effect as the releases' own, on a range and the next release."""
    if run.edits == cell.edits:
        return run.edits
    if run.edits in separate and cell.edits in separate:
        return None
    first, second = sorted((run.edits, cell.edits), key=lambda edits: edits not in separate)
    for edits in (first, second, generalize_edits(run.edits, cell.edits)):
        if edits is None:
            continue
        tried = [resolve_edits(edits, known_cell.tree) for known_cell in (*run.cells, cell)]
        if all(
            new is not None and new.state is old.state and has_same_effect(new, old)
            for new, old in zip(tried, (*run.cells, cell), strict=True)
        ):
            return edits
    return None


def build_variant(edits: Sequence[ToggleEdit], releases: str) -> ToggleVariant:
    """Build a variant, with one target if all edits share it."""
    targets = {edit.target for edit in edits}
    if len(targets) > 1:
        return ToggleVariant(releases=releases, edits=tuple(edits))
    plain = tuple(ToggleEdit(fixed=edit.fixed, buggy=edit.buggy) for edit in edits)
    return ToggleVariant(releases=releases, edits=plain, target=targets.pop())
