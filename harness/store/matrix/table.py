"""The matrix runs of a store: attempts are written as they end, many of them in one write."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from harness.store.file import as_text
from harness.store.matrix.values import Attempt, MatrixRun, Outcome, RanCell
from harness.store.rows import RunTables
from harness.store.writers import me

TABLES = {"matrices": "id", "matrix_cells": "run", "matrix_attempts": "run"}


class Matrices(RunTables):
    """What `unfix matrix run` leaves behind."""

    def begin_matrix(self, run: MatrixRun) -> None:
        """A new run with its cells, or an old one that goes on; a running one is refused."""
        with self._writing():
            self._not_running("matrices", run.id, "matrix run")
            self._keep_matrix(run, "running")
            for place, cell in enumerate(run.cells):
                bare = msgspec.structs.replace(cell, attempts=[])
                self._put("matrix_cells", run.id, place, cell.identity, as_text(bare))

    def attempts(self, run: str, ended: Iterable[tuple[str, Attempt]]) -> None:
        """What ended since the last write, each with its cell's identity: all of it or nothing."""
        with self._writing():
            for cell, one in ended:
                self._put(
                    *("matrix_attempts", run, cell, one.number, one.outcome.value, one.seconds),
                    *(int(one.last), as_text(one)),
                )

    def end_matrix(self, run: MatrixRun) -> None:
        with self._writing():
            self._keep_matrix(run, run.status)

    def _keep_matrix(self, run: MatrixRun, status: str) -> None:
        bare = msgspec.structs.replace(run, cells=[], status=status)
        self._put(
            *("matrices", run.id, run.started, status, me()),
            *(run.plan, run.number, run.of, as_text(bare)),
        )

    def matrices(self) -> list[MatrixRun]:
        """Every matrix run without its cells, the oldest first."""
        return self._runs_of("matrices", MatrixRun)

    def find_matrix(self, name: str) -> MatrixRun | None:
        """A whole run, by its id or by how its id begins; None if there is none."""
        found = self._named(self.matrices(), name, "matrix run")
        return self.with_cells(found) if found else None

    def with_cells(self, run: MatrixRun) -> MatrixRun:
        with self._explained():
            cells = {}
            for cell, data in self._db.execute(
                "SELECT cell, data FROM matrix_cells WHERE run = ? ORDER BY place", (run.id,)
            ):
                cells[cell] = msgspec.json.decode(data, type=RanCell)
            for cell, data in self._db.execute(
                "SELECT cell, data FROM matrix_attempts WHERE run = ? ORDER BY cell, number",
                (run.id,),
            ):
                cells[cell].attempts.append(msgspec.json.decode(data, type=Attempt))
        return msgspec.structs.replace(run, cells=list(cells.values()))

    def seconds_by_identity(self) -> dict[str, float]:
        """How long each cell's command takes, the median over all runs that came to an answer."""
        told: dict[str, list[float]] = {}
        with self._explained():
            for cell, seconds in self._db.execute(
                "SELECT cell, seconds FROM matrix_attempts WHERE outcome IN (?, ?)",
                (Outcome.GREEN, Outcome.RED),
            ):
                told.setdefault(cell, []).append(seconds)
        return {cell: statistics.median(seconds) for cell, seconds in told.items()}

    def merge_matrices(self, other: Matrices) -> list[str]:
        """Take in the runs of another file that this one lacks, or has only a part of."""
        here = {run.id: self._done(run) for run in self.matrices()}
        theirs = other.matrices()
        for run in theirs:
            if run.id not in here or other._done(run) > here[run.id]:
                self._copy_rows(other, TABLES, run.id)
        return [run.id for run in theirs]

    def _done(self, run: MatrixRun) -> tuple[int, bool]:
        """How far a run has come: of two copies the one that is further along is the run."""
        query = "SELECT count(*) FROM matrix_attempts WHERE run = ?"
        with self._explained():
            attempts: int = self._db.execute(query, (run.id,)).fetchone()[0]
        return attempts, run.status == "finished"
