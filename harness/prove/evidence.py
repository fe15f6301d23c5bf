"""What earlier runs saw of a cell: what takes minutes need not be run again every night."""

from __future__ import annotations

from collections.abc import Iterator

from harness.store.prove.table import Proofs
from harness.store.prove.values import Again, Cell, Outcome, Run, Side, Way

SAME = ("code", "profile")  # settings that decide what a guard does


class Earlier:
    """Finished runs of the very same guards and toggles, and what their sides came to."""

    def __init__(self, store: Proofs, run: Run) -> None:
        self._store = store
        self._run = run

    def __call__(self, cell: Cell) -> Iterator[tuple[str, Again]]:
        """Each time that a side of this cell was run, the newest run first."""
        for run in reversed(self._store.all()):
            if run.id == self._run.id or run.kind != self._run.kind or run.status != "finished":
                continue
            if any(run.settings.get(name) != self._run.settings.get(name) for name in SAME):
                continue
            for side in self._store.sides_of(run.id, cell.key):
                yield from _times(side, cell.sides["buggy"].way, run.id)


def _times(side: Side, way: Way, run: str) -> Iterator[tuple[str, Again]]:
    # A first look for what a search found was shorter with the fix in.
    short = side.side == "fixed" and way is Way.SEARCH and side.outcome is Outcome.PASSED
    if side.outcome is not Outcome.LOST and not short:  # that says nothing of the guard
        yield side.side, Again(side.outcome, side.headline, run=run)
    for again in side.again:
        if not again.run and again.outcome is not Outcome.LOST:
            yield side.side, Again(again.outcome, again.headline, run=run)
