"""An edit through all releases: followed from one of them, told as variants with their ranges."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.adopt.following import Known, follow, known, same_effect
from harness.adopt.generalising import generalised
from harness.registry.schema import Edit, Variant
from harness.releases.sources import SourceTree


@dataclass(frozen=True)
class Course:
    """What the edit is on each release, oldest first; a sentence where it is not there."""

    cells: tuple[tuple[SourceTree, Known | str], ...]

    @property
    def held(self) -> list[Known]:
        return [cell for _, cell in self.cells if isinstance(cell, Known)]


def through(anchor: Known, trees: Sequence[SourceTree]) -> Course:
    """Followed release by release, newer ones and older ones, each from the last that has it.

    The anchor may be one of the releases, or a commit between two of them.
    """
    here = (anchor.tree.version, anchor.tree.name)
    cells: dict[str, Known | str] = {}
    version = anchor.tree.version
    older = [t for t in trees if version is None or (t.version and t.version <= version)]
    newer = [t for t in trees if t not in older]
    for direction in (list(reversed(older)), newer):
        last = anchor
        for tree in direction:
            if (tree.version, tree.name) == here:
                cells[tree.name] = anchor
                continue
            found = follow(last, tree)
            cells[tree.name] = found
            last = found if isinstance(found, Known) else last
    return Course(tuple((tree, cells[tree.name]) for tree in trees))


@dataclass
class _Run:
    """Neighbouring releases with the same forms."""

    first: str
    end: str | None  # the release behind the last; None for the newest
    edits: tuple[Edit, ...]
    cells: list[Known]


def variants(course: Course, kept: Collection[tuple[Edit, ...]] = ()) -> tuple[Variant, ...]:
    """The forms with their ranges; two that are `kept` stay two, and are made one by nobody."""
    runs: list[_Run] = []
    open_run = False
    for tree, cell in course.cells:
        name = str(tree.version or tree.name)
        if runs and open_run:
            runs[-1].end = name
        if isinstance(cell, str):
            open_run = False
            continue
        merged = _merged(runs[-1], cell, kept) if runs and open_run else None
        if merged is not None:
            runs[-1].edits = merged
            runs[-1].cells.append(cell)
            runs[-1].end = None
        else:
            runs.append(_Run(name, None, cell.edits, [cell]))
        open_run = True
    return tuple(
        variant(run.edits, f">={run.first}" + (f",<{run.end}" if run.end else "")) for run in runs
    )


def _merged(run: _Run, cell: Known, kept: Collection[tuple[Edit, ...]]) -> tuple[Edit, ...] | None:
    """The forms that hold for a run of releases and the next one, doing what each one's own do."""
    if run.edits == cell.edits:
        return run.edits
    if run.edits in kept and cell.edits in kept:
        return None
    first, second = sorted((run.edits, cell.edits), key=lambda edits: edits not in kept)
    for edits in (first, second, generalised(run.edits, cell.edits)):
        if edits is None:
            continue
        tried = [known(edits, one.tree) for one in (*run.cells, cell)]
        if all(
            new is not None and new.state is old.state and same_effect(new, old)
            for new, old in zip(tried, (*run.cells, cell), strict=True)
        ):
            return edits
    return None


def variant(edits: Sequence[Edit], releases: str) -> Variant:
    """A variant with one target for all edits, if they share it."""
    targets = {edit.target for edit in edits}
    if len(targets) > 1:
        return Variant(releases=releases, edits=tuple(edits))
    plain = tuple(Edit(fixed=edit.fixed, buggy=edit.buggy) for edit in edits)
    return Variant(releases=releases, edits=plain, target=targets.pop())
