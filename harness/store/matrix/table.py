"""The matrix runs of a store: attempts are written as they end, many of them in one write."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from harness.store.matrix.values import AttemptOutcome, CellAttempt, MatrixCellResult, MatrixRun
from harness.store.run_table import RunTable
from harness.store.sqlite_file import encode_json
from harness.store.writer_process import identify_this_process


class MatrixTable(RunTable[MatrixRun, MatrixRun]):
    """What `unfix matrix run` leaves behind."""

    noun = "matrix run"
    tables: ClassVar = {"matrices": "id", "matrix_cells": "run", "matrix_attempts": "run"}
    listed_type = MatrixRun

    def begin(self, run: MatrixRun) -> None:
        """A new run with its cells, or an old one that goes on; a running one is refused."""
        with self.store.write_transaction():
            self._refuse_if_running(run.id)
            self._save_run(run, "running")
            for place, cell in enumerate(run.cells):
                bare = msgspec.structs.replace(cell, attempts=[])
                self.store.replace_row(
                    "matrix_cells", run.id, place, cell.identity, encode_json(bare)
                )

    def save_attempts(self, run: str, attempts: Iterable[tuple[str, CellAttempt]]) -> None:
        """What ended since the last write, each with its cell's identity: all of it or nothing."""
        with self.store.write_transaction():
            for cell, one in attempts:
                self.store.replace_row(
                    *("matrix_attempts", run, cell, one.number, one.outcome.value, one.seconds),
                    *(int(one.last), encode_json(one)),
                )

    def end(self, run: MatrixRun) -> None:
        with self.store.write_transaction():
            self._save_run(run, run.status)

    def _save_run(self, run: MatrixRun, status: str) -> None:
        bare = msgspec.structs.replace(run, cells=[], status=status)
        self.store.replace_row(
            *("matrices", run.id, run.started, status, identify_this_process()),
            *(run.plan, run.number, run.of, encode_json(bare)),
        )

    def load_whole(self, run: MatrixRun) -> MatrixRun:
        query = "SELECT data FROM matrix_cells WHERE run = ? ORDER BY place"
        cells = {
            cell.identity: cell for cell in self._decode_rows(MatrixCellResult, query, [run.id])
        }
        with self.store.explain_errors():
            for cell, data in self.store.db.execute(
                "SELECT cell, data FROM matrix_attempts WHERE run = ? ORDER BY cell, number",
                (run.id,),
            ):
                cells[cell].attempts.append(msgspec.json.decode(data, type=CellAttempt))
        return msgspec.structs.replace(run, cells=list(cells.values()))

    def load_median_seconds(self) -> dict[str, float]:
        """How long each cell's command takes, the median over all runs that came to an answer."""
        told: dict[str, list[float]] = {}
        with self.store.explain_errors():
            for cell, seconds in self.store.db.execute(
                "SELECT cell, seconds FROM matrix_attempts WHERE outcome IN (?, ?)",
                (AttemptOutcome.GREEN, AttemptOutcome.RED),
            ):
                told.setdefault(cell, []).append(seconds)
        return {cell: statistics.median(seconds) for cell, seconds in told.items()}

    def measure_progress(self, run: MatrixRun) -> tuple[Any, ...]:
        # One that was finished goes on when what it lost is run again.
        finished, cells, attempts = super().measure_progress(run)
        return attempts, finished, cells
