"""The matrix runs of a store: attempts are written as they end, many of them in one write."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from harness.store.file import as_text
from harness.store.matrix.values import Attempt, MatrixRun, Outcome, RanCell
from harness.store.table import Table
from harness.store.writers import me


class Matrices(Table[MatrixRun, MatrixRun]):
    """What `unfix matrix run` leaves behind."""

    noun = "matrix run"
    tables: ClassVar = {"matrices": "id", "matrix_cells": "run", "matrix_attempts": "run"}
    kind = MatrixRun

    def begin(self, run: MatrixRun) -> None:
        """A new run with its cells, or an old one that goes on; a running one is refused."""
        with self.store.writing():
            self._not_running(run.id)
            self._keep(run, "running")
            for place, cell in enumerate(run.cells):
                bare = msgspec.structs.replace(cell, attempts=[])
                self.store.put("matrix_cells", run.id, place, cell.identity, as_text(bare))

    def attempts(self, run: str, ended: Iterable[tuple[str, Attempt]]) -> None:
        """What ended since the last write, each with its cell's identity: all of it or nothing."""
        with self.store.writing():
            for cell, one in ended:
                self.store.put(
                    *("matrix_attempts", run, cell, one.number, one.outcome.value, one.seconds),
                    *(int(one.last), as_text(one)),
                )

    def end(self, run: MatrixRun) -> None:
        with self.store.writing():
            self._keep(run, run.status)

    def _keep(self, run: MatrixRun, status: str) -> None:
        bare = msgspec.structs.replace(run, cells=[], status=status)
        self.store.put(
            *("matrices", run.id, run.started, status, me()),
            *(run.plan, run.number, run.of, as_text(bare)),
        )

    def whole(self, run: MatrixRun) -> MatrixRun:
        query = "SELECT data FROM matrix_cells WHERE run = ? ORDER BY place"
        cells = {cell.identity: cell for cell in self._decoded(RanCell, query, [run.id])}
        with self.store.explained():
            for cell, data in self.store.db.execute(
                "SELECT cell, data FROM matrix_attempts WHERE run = ? ORDER BY cell, number",
                (run.id,),
            ):
                cells[cell].attempts.append(msgspec.json.decode(data, type=Attempt))
        return msgspec.structs.replace(run, cells=list(cells.values()))

    def seconds_by_identity(self) -> dict[str, float]:
        """How long each cell's command takes, the median over all runs that came to an answer."""
        told: dict[str, list[float]] = {}
        with self.store.explained():
            for cell, seconds in self.store.db.execute(
                "SELECT cell, seconds FROM matrix_attempts WHERE outcome IN (?, ?)",
                (Outcome.GREEN, Outcome.RED),
            ):
                told.setdefault(cell, []).append(seconds)
        return {cell: statistics.median(seconds) for cell, seconds in told.items()}

    def progress(self, run: MatrixRun) -> tuple[Any, ...]:
        # One that was finished goes on when what it lost is run again.
        finished, cells, attempts = super().progress(run)
        return attempts, finished, cells
