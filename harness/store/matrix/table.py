"""The stored runs of `unfix matrix run`. One write stores all attempts that have just ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from harness.core.outcomes import Outcome, RunStatus
from harness.store.matrix.values import CellAttempt, MatrixCellResult, MatrixRun
from harness.store.run_table import RunTable


class MatrixTable(RunTable[MatrixRun, MatrixRun]):
    kind = "matrix"
    noun = "matrix run"
    item_types: ClassVar = {"cells": MatrixCellResult}
    listed_type = MatrixRun

    def _write_run(self, run: MatrixRun, status: RunStatus) -> None:
        super()._write_run(run, status)
        for position, cell in enumerate(run.cells):
            bare = msgspec.structs.replace(cell, attempts=[])
            self._write_item(run.id, "cells", bare, owner=cell.identity, position=position)

    def save_attempts(self, run_id: str, attempts: Iterable[tuple[str, CellAttempt]]) -> None:
        """Store attempts under the identities of their cells, all in one transaction."""
        with self.store.write_transaction():
            for cell, attempt in attempts:
                self._write_item(
                    *(run_id, "attempts", attempt),
                    owner=cell,
                    key=str(attempt.number),
                    position=attempt.number,
                    outcome=attempt.outcome.value,
                    seconds=attempt.seconds,
                )

    def _load_whole(self, run: MatrixRun) -> MatrixRun:
        whole = super()._load_whole(run)
        cells = {cell.identity: cell for cell in whole.cells}
        for cell, attempt in self.load_owned_items(run.id, "attempts", CellAttempt):
            cells[cell].attempts.append(attempt)
        return whole

    def load_cell(self, run_id: str, identity: str) -> MatrixCellResult:
        """Return one cell of a run, with its attempts."""
        ((_, cell),) = self.load_owned_items(run_id, "cells", MatrixCellResult, identity)
        attempts = self.load_owned_items(run_id, "attempts", CellAttempt, identity)
        cell.attempts = [attempt for _, attempt in attempts]
        return cell

    def load_median_seconds(self) -> dict[str, float]:
        """Return the median seconds of each cell's command, over all runs that gave a verdict."""
        seconds_by_cell: dict[str, list[float]] = {}
        for cell, seconds in self.store.query(
            "SELECT owner, seconds FROM items WHERE part = 'attempts' AND outcome IN (?, ?)",
            *(Outcome.PASSED.value, Outcome.FAILED.value),
        ):
            seconds_by_cell.setdefault(cell, []).append(seconds)
        return {cell: statistics.median(seconds) for cell, seconds in seconds_by_cell.items()}

    def measure_progress(self, run: MatrixRun) -> tuple[Any, ...]:
        # Attempts first: a resumed run repeats lost cells, so a finished run can grow.
        is_ended, attempts, items = super().measure_progress(run)
        return attempts, is_ended, items
