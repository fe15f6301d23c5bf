"""The stored runs of `unfix prove` and `unfix lifecycle`, written cell by cell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.store.prove.values import CellResult, ProveRun, ReleaseFacts, SideResult
from harness.store.run_table import RunTable


class ProveTable(RunTable[ProveRun, ProveRun]):
    kind = "prove"
    noun = "run"
    item_types: ClassVar = {"releases": ReleaseFacts, "cells": CellResult}
    listed_type = ProveRun

    def save_release(self, run_id: str, facts: ReleaseFacts) -> None:
        self.save_item(run_id, "releases", facts, owner=facts.release, key=facts.device)

    def save_planned_cells(self, run_id: str, cells: Iterable[CellResult]) -> None:
        """Store all cells of a release before the first one runs. A resumed run's cells stay."""
        with self.store.write_transaction():
            for cell in cells:
                self._write_cell(run_id, cell, overwrite=False)

    def save_verdict(self, run_id: str, cell: CellResult) -> None:
        with self.store.write_transaction():
            self._write_cell(run_id, cell)

    def _write_cell(self, run_id: str, cell: CellResult, overwrite: bool = True) -> None:
        bare = msgspec.structs.replace(cell, sides={})
        verdict = cell.verdict.value if cell.verdict else None
        owner = format_cell_key(cell.key)
        self._write_item(run_id, "cells", bare, owner=owner, outcome=verdict, overwrite=overwrite)

    def save_side(self, run_id: str, cell: CellResult, result: SideResult) -> None:
        """Store one side of a cell when it ends."""
        self.save_item(
            *(run_id, "sides", result),
            owner=format_cell_key(cell.key),
            key=result.side,
            outcome=result.outcome.value,
            seconds=result.seconds,
        )

    def measure_progress(self, run: ProveRun) -> tuple[Any, ...]:
        """Count cells with a verdict. Sides do not count, since a cell may start over."""
        ((verdicts,),) = self.store.query(
            "SELECT count(outcome) FROM items WHERE run = ? AND part = 'cells'", run.id
        )
        return run.status is RunStatus.FINISHED, verdicts

    def find_latest(self, kind: str | None = None) -> ProveRun:
        """Return the newest run of a kind that has cells, or else the newest, without its cells."""
        with_cells = {
            name
            for (name,) in self.store.query("SELECT DISTINCT run FROM items WHERE part = 'cells'")
        }
        runs = [run for run in reversed(self.list_runs()) if kind in (None, run.kind)]
        if not runs:
            command = f"`unfix {kind}`" if kind else "anything"
            raise UnfixError(f"{self.store.file} holds no run of {command} yet")
        return next((run for run in runs if run.id in with_cells), runs[0])

    def _read_run(self, *row: str) -> ProveRun:
        run: ProveRun = super()._read_run(*row)
        part, parts = run.shard
        if part > parts:
            raise ValueError(f"run {run.id} is part {part} of {parts}")
        return run

    def _load_whole(self, run: ProveRun) -> ProveRun:
        whole = super()._load_whole(run)
        whole.cells.sort(key=lambda cell: (cell.release, cell.toggle, cell.guard))
        cells = {format_cell_key(cell.key): cell for cell in whole.cells}
        for owner, side in self.load_owned_items(run.id, "sides", SideResult):
            if owner in cells:
                cells[owner].sides[side.side] = side
        return whole

    def load_sides(self, run_id: str, key: tuple[str, str, str, str]) -> list[SideResult]:
        """Return the sides of one cell, by release, device, toggle and guard."""
        owner = format_cell_key(key)
        return [side for _, side in self.load_owned_items(run_id, "sides", SideResult, owner)]

    def load_average_seconds(self) -> dict[tuple[str, str, str], float]:
        """Return mean seconds by toggle, guard and side, over all runs, releases and devices."""
        totals: dict[tuple[str, str, str], tuple[float, int]] = {}
        for owner, side, seconds, count in self.store.query(
            "SELECT owner, key, sum(seconds), count(*) FROM items WHERE part = 'sides' "
            "GROUP BY owner, key"
        ):
            _, _, toggle, guard = self.store.decode(owner, tuple[str, str, str, str])
            earlier_seconds, earlier_count = totals.get((toggle, guard, side), (0.0, 0))
            totals[toggle, guard, side] = earlier_seconds + seconds, earlier_count + count
        return {key: seconds / count for key, (seconds, count) in totals.items()}


def format_cell_key(key: tuple[str, str, str, str]) -> str:
    """Return release, device, toggle and guard as the owner of a cell's items."""
    return json.dumps(key)
