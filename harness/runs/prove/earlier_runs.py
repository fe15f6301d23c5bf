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


def iterate_earlier_repetitions(
    store: ProveTable, run: ProveRun, cell: CellResult
) -> Iterator[tuple[str, SideRepetition]]:
    """Iterate the runs of a cell's sides in finished runs of the same guards, the newest first."""
    for earlier in reversed(store.list_runs()):
        if earlier.id == run.id or earlier.kind != run.kind or earlier.status != "finished":
            continue
        if _list_conditions(earlier, cell) != _list_conditions(run, cell):
            continue
        for side in store.load_sides(earlier.id, cell.key):
            yield from _read_repetitions(side, cell.sides["buggy"].way, earlier.id)


def _list_conditions(run: ProveRun, cell: CellResult) -> list[object]:
    """List all that a cell's result depends on: code, SGLang's sources, packages."""
    digests = [run.settings.get(name, {}).get(cell.release) for name in DIGESTS_TO_MATCH]
    return [*(run.settings.get(name) for name in SETTINGS_TO_MATCH), *digests]


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
