"""The runs of a store: written cell by cell, so that a kill at any moment loses none.

Nothing is kept in memory that is not in the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UnfixError
from harness.store.bisect.table import Searches
from harness.store.eval.table import Evaluations
from harness.store.file import TABLES, as_text
from harness.store.fuzz.table import Fuzzings
from harness.store.glances import Glances
from harness.store.matrix.table import Matrices
from harness.store.mutate.table import Mutations
from harness.store.prove.values import Cell, OnRelease, Run, Side, ToggleFacts, Verdict
from harness.store.writers import alive, me


class Store(Searches, Evaluations, Matrices, Fuzzings, Mutations, Glances):
    """The runs, searches, evaluations, matrix, fuzzing and mutation runs of one file."""

    # Writing

    def begin(self, run: Run) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self._writing():
            self._not_running("runs", run.id, "run")
            self._put(
                *("runs", run.id, run.kind, run.started, "running", run.seconds, me()),
                *(as_text(run.command), as_text(run.settings)),
            )
            for toggle in run.toggles:
                self._put("toggles", run.id, toggle.id, as_text(toggle))

    def met(self, run: str, on: OnRelease) -> None:
        with self._writing():
            self._put("releases", run, on.release, on.device, as_text(on))

    def plan(self, run: str, cells: Iterable[Cell]) -> None:
        """All cells of a release, before the first is run."""
        with self._writing():
            for cell in cells:
                self._db.execute(
                    "INSERT OR IGNORE INTO cells VALUES (?,?,?,?,?,?,?,?)",
                    (run, *cell.key, cell.state, cell.verdict, cell.why),
                )

    def side(self, run: str, cell: Cell, side: Side) -> None:
        """One side of a cell, as it ends."""
        with self._writing():
            self._put(
                *("sides", run, *cell.key, side.side),
                *(side.outcome.value, side.reach, side.seconds, as_text(side)),
            )

    def judged(self, run: str, cell: Cell) -> None:
        with self._writing():
            verdict = cell.verdict.value if cell.verdict else None
            self._put("cells", run, *cell.key, cell.state, verdict, cell.why)

    def end(self, run: str, status: str, seconds: float) -> None:
        with self._writing():
            self._db.execute(
                "UPDATE runs SET status = ?, seconds = ? WHERE id = ?", (status, seconds, run)
            )

    def merge(self, other: Path) -> list[str]:
        """Take in the runs of another file; gives the ids of those that it holds."""
        if other.resolve() == self.file.resolve():
            raise UnfixError(f"{other} is this store itself")
        there = Store(other, make=False)
        theirs = there.runs()
        for run in theirs:
            if there._progress(run.id) > self._progress(run.id):
                self._copy(there, run.id)
        self.merge_searches(there)
        self.merge_evaluations(there)
        self.merge_matrices(there)
        self.merge_fuzzings(there)
        self.merge_mutations(there)
        there.close()
        return [run.id for run in theirs]

    def _progress(self, run: str) -> tuple[bool, int]:
        """How far a run has come: of two copies the one that is further along is the run."""
        row = self._db.execute("SELECT status FROM runs WHERE id = ?", (run,)).fetchone()
        done = self._db.execute(
            "SELECT count(*) FROM cells WHERE run = ? AND verdict IS NOT NULL", (run,)
        ).fetchone()[0]
        return (row[0] == "finished", done) if row else (False, -1)

    def _copy(self, other: Store, run: str) -> None:
        with self._writing():
            for table in TABLES:
                key = "id" if table == "runs" else "run"
                self._db.execute(f"DELETE FROM {table} WHERE {key} = ?", (run,))
                rows = other._db.execute(f"SELECT * FROM {table} WHERE {key} = ?", (run,))
                for row in rows:
                    self._put(table, *row)

    # Reading

    def runs(self) -> list[Run]:
        """Every run without its cells, the oldest first."""
        with self._explained():
            rows = self._db.execute(
                "SELECT id, kind, started, status, seconds, process, command, settings FROM runs "
                "ORDER BY started, id"
            ).fetchall()
        return [_run(row) for row in rows]

    def newest(self, kind: str | None = None) -> Run:
        """The newest run of a kind that met any cells, without them: a wrong call met none."""
        with self._explained():
            some = {name for (name,) in self._db.execute("SELECT DISTINCT run FROM cells")}
        runs = [run for run in reversed(self.runs()) if kind in (None, run.kind)]
        for run in [run for run in runs if run.id in some] + runs[:1]:
            return run
        what = f"`unfix {kind}`" if kind else "anything"
        raise UnfixError(f"{self.file} holds no run of {what} yet")

    def load(self, name: str) -> Run:
        """A whole run, by its id or by how its id begins."""
        ids = [run for run in self.runs() if run.id.startswith(name)]
        if len(ids) != 1:
            raise UnfixError(
                f"{self.file} holds {'no' if not ids else 'more than one'} run {name}: "
                f"`unfix report --list` shows them"
            )
        run = ids[0]
        with self._explained():
            run.releases = [
                msgspec.json.decode(data, type=OnRelease)
                for (data,) in self._db.execute(
                    "SELECT data FROM releases WHERE run = ? ORDER BY rowid", (run.id,)
                )
            ]
            run.toggles = [
                msgspec.json.decode(data, type=ToggleFacts)
                for (data,) in self._db.execute(
                    "SELECT data FROM toggles WHERE run = ? ORDER BY rowid", (run.id,)
                )
            ]
            run.cells = self._cells(run.id)
        return run

    def took(self) -> dict[tuple[str, str, str], float]:
        """Seconds by toggle, guard and side, over all runs."""
        with self._explained():
            rows = self._db.execute(
                "SELECT toggle, guard, side, avg(seconds) FROM sides GROUP BY toggle, guard, side"
            ).fetchall()
        return {(toggle, guard, side): seconds for toggle, guard, side, seconds in rows}

    def _cells(self, run: str) -> list[Cell]:
        cells: dict[tuple[str, ...], Cell] = {}
        for release, device, toggle, guard, state, verdict, why in self._db.execute(
            "SELECT release, device, toggle, guard, state, verdict, why FROM cells "
            "WHERE run = ? ORDER BY release, toggle, guard",
            (run,),
        ):
            reached = Verdict(verdict) if verdict else None
            cell = Cell(guard, toggle, release, device, state, reached, why)
            cells[cell.key] = cell
        for *key, data in self._db.execute(
            "SELECT release, device, toggle, guard, data FROM sides WHERE run = ?", (run,)
        ):
            side = msgspec.json.decode(data, type=Side)
            if tuple(key) in cells:
                cells[tuple(key)].sides[side.side] = side
        return list(cells.values())


def _run(row: tuple[Any, ...]) -> Run:
    name, kind, started, status, seconds, process, command, settings = row
    if status == "running" and not alive(process):
        status = "stopped"
    return Run(
        id=name,
        kind=kind,
        started=started,
        status=status,
        seconds=seconds,
        command=msgspec.json.decode(command),
        settings=msgspec.json.decode(settings),
    )
