"""An edit through all releases: followed from one of them, told as variants with their ranges."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    """What the edit is on each release, oldest first; a sentence where it is not there."""

    cells: tuple[tuple[SourceTree, ResolvedEdits | str], ...]

    @property
    def resolved_edits(self) -> list[ResolvedEdits]:
        return [cell for _, cell in self.cells if isinstance(cell, ResolvedEdits)]


def trace_edits(anchor: ResolvedEdits, trees: Sequence[SourceTree]) -> EditTimeline:
    """Followed release by release, newer ones and older ones, each from the last that has it.

    The anchor may be one of the releases, or a commit between two of them.
    """
    here = (anchor.tree.version, anchor.tree.name)
    cells: dict[str, ResolvedEdits | str] = {}
    version = anchor.tree.version
    older = [t for t in trees if version is None or (t.version and t.version <= version)]
    newer = [t for t in trees if t not in older]
    for direction in (list(reversed(older)), newer):
        last = anchor
        for tree in direction:
            if (tree.version, tree.name) == here:
                cells[tree.name] = anchor
                continue
            found = port_edits(last, tree)
            cells[tree.name] = found
            last = found if isinstance(found, ResolvedEdits) else last
    return EditTimeline(tuple((tree, cells[tree.name]) for tree in trees))


@dataclass
class _VariantRange:
    """Neighbouring releases with the same forms."""

    first_release: str
    end_release: str | None  # the release behind the last; None for the newest
    edits: tuple[ToggleEdit, ...]
    cells: list[ResolvedEdits]


def build_variants(
    course: EditTimeline, separate: Collection[tuple[ToggleEdit, ...]] = ()
) -> tuple[ToggleVariant, ...]:
    """The forms with their ranges; two that are `kept` stay two, and are made one by nobody."""
    runs: list[_VariantRange] = []
    open_run = False
    for tree, cell in course.cells:
        name = str(tree.version or tree.name)
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


def _merge_edits(
    run: _VariantRange, cell: ResolvedEdits, separate: Collection[tuple[ToggleEdit, ...]]
) -> tuple[ToggleEdit, ...] | None:
    """The forms that hold for a run of releases and the next one, doing what each one's own do."""
    if run.edits == cell.edits:
        return run.edits
    if run.edits in separate and cell.edits in separate:
        return None
    first, second = sorted((run.edits, cell.edits), key=lambda edits: edits not in separate)
    for edits in (first, second, generalize_edits(run.edits, cell.edits)):
        if edits is None:
            continue
        tried = [resolve_edits(edits, one.tree) for one in (*run.cells, cell)]
        if all(
            new is not None and new.state is old.state and has_same_effect(new, old)
            for new, old in zip(tried, (*run.cells, cell), strict=True)
        ):
            return edits
    return None


def build_variant(edits: Sequence[ToggleEdit], releases: str) -> ToggleVariant:
    """A variant with one target for all edits, if they share it."""
    targets = {edit.target for edit in edits}
    if len(targets) > 1:
        return ToggleVariant(releases=releases, edits=tuple(edits))
    plain = tuple(ToggleEdit(fixed=edit.fixed, buggy=edit.buggy) for edit in edits)
    return ToggleVariant(releases=releases, edits=plain, target=targets.pop())
