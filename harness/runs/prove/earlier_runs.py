"""The repetitions of a cell in earlier runs, which save those of long guards every night."""

from __future__ import annotations

from collections.abc import Iterator

from harness.store.prove.table import ProveTable
from harness.store.prove.values import (
    CellResult,
    ProveRun,
    RepeatMode,
    SideOutcome,
    SideRepetition,
    SideResult,
)

SETTINGS_TO_MATCH = ("code", "profile")  # the settings that change a guard's behaviour
DIGESTS_TO_MATCH = ("sources", "packages")  # of each release


class EarlierRuns:
    """Finished runs of the same guards and toggles, and the outcomes of their sides."""

    def __init__(self, store: ProveTable, run: ProveRun) -> None:
        self._store = store
        self._run = run

    def __call__(self, cell: CellResult) -> Iterator[tuple[str, SideRepetition]]:
        """Return every run of a side of this cell, the newest first."""
        for run in reversed(self._store.list_runs()):
            if run.id == self._run.id or run.kind != self._run.kind or run.status != "finished":
                continue
            if self._describe_conditions(run, cell) != self._describe_conditions(self._run, cell):
                continue
            for side in self._store.load_sides(run.id, cell.key):
                yield from _read_repetitions(side, cell.sides["buggy"].way, run.id)

    def _describe_conditions(self, run: ProveRun, cell: CellResult) -> object:
        """Describe all that a cell's result depends on: code, SGLang's sources, packages."""
        settings = [run.settings.get(name) for name in SETTINGS_TO_MATCH]
        digests = [run.settings.get(name, {}).get(cell.release) for name in DIGESTS_TO_MATCH]
        return settings, digests


def _read_repetitions(
    side: SideResult, mode: RepeatMode, run: str
) -> Iterator[tuple[str, SideRepetition]]:
    # The first search of the fixed side draws fewer examples than a repetition.
    is_shorter = (
        side.side == "fixed" and mode is RepeatMode.SEARCH and side.outcome is SideOutcome.PASSED
    )
    if side.outcome is not SideOutcome.LOST and not is_shorter:
        yield side.side, SideRepetition(side.outcome, side.headline, run=run)
    for again in side.again:
        if not again.run and again.outcome is not SideOutcome.LOST:
            yield side.side, SideRepetition(again.outcome, again.headline, run=run)
