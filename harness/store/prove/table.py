"""The proofs and lifecycles of a store: written cell by cell, so that a kill loses none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from harness.errors import UnfixError
from harness.store.file import as_text
from harness.store.prove.values import Cell, OnRelease, Run, Side, ToggleFacts, Verdict
from harness.store.table import Table, as_it_is
from harness.store.writers import me


class Proofs(Table[Run, Run]):
    """What `unfix prove` and `unfix lifecycle` leave behind."""

    noun = "run"
    tables: ClassVar = {"runs": "id"} | dict.fromkeys(
        ("releases", "toggles", "cells", "sides"), "run"
    )
    kind = Run

    # Writing

    def begin(self, run: Run) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self.store.writing():
            self._not_running(run.id)
            self.store.put(
                *("runs", run.id, run.kind, run.started, "running", run.seconds, me()),
                *(as_text(run.command), as_text(run.settings)),
            )
            for toggle in run.toggles:
                self.store.put("toggles", run.id, toggle.id, as_text(toggle))

    def met(self, run: str, on: OnRelease) -> None:
        with self.store.writing():
            self.store.put("releases", run, on.release, on.device, as_text(on))

    def plan(self, run: str, cells: Iterable[Cell]) -> None:
        """All cells of a release, before the first is run."""
        with self.store.writing():
            for cell in cells:
                self.store.db.execute(
                    "INSERT OR IGNORE INTO cells VALUES (?,?,?,?,?,?,?,?)",
                    (run, *cell.key, cell.state, cell.verdict, cell.why),
                )

    def side(self, run: str, cell: Cell, side: Side) -> None:
        """One side of a cell, as it ends."""
        with self.store.writing():
            self.store.put(
                *("sides", run, *cell.key, side.side),
                *(side.outcome.value, side.reach, side.seconds, as_text(side)),
            )

    def judged(self, run: str, cell: Cell) -> None:
        with self.store.writing():
            verdict = cell.verdict.value if cell.verdict else None
            self.store.put("cells", run, *cell.key, cell.state, verdict, cell.why)

    def end(self, run: str, status: str, seconds: float) -> None:
        with self.store.writing():
            self.store.db.execute(
                "UPDATE runs SET status = ?, seconds = ? WHERE id = ?", (status, seconds, run)
            )

    def progress(self, run: Run) -> tuple[Any, ...]:
        with self.store.explained():
            done: int = self.store.db.execute(
                "SELECT count(*) FROM cells WHERE run = ? AND verdict IS NOT NULL", (run.id,)
            ).fetchone()[0]
        return run.status == "finished", done

    # Reading

    def all(self) -> list[Run]:
        """Every run without its cells, the oldest first."""
        with self.store.explained():
            rows = self.store.db.execute(
                "SELECT id, kind, started, status, seconds, process, command, settings FROM runs "
                "ORDER BY started, id"
            ).fetchall()
        return [_run(row) for row in rows]

    def latest(self, kind: str | None = None) -> Run:
        """The newest run of a kind that met any cells, without them: a wrong call met none."""
        with self.store.explained():
            some = {name for (name,) in self.store.db.execute("SELECT DISTINCT run FROM cells")}
        runs = [run for run in reversed(self.all()) if kind in (None, run.kind)]
        for run in [run for run in runs if run.id in some] + runs[:1]:
            return run
        what = f"`unfix {kind}`" if kind else "anything"
        raise UnfixError(f"{self.store.file} holds no run of {what} yet")

    def whole(self, run: Run) -> Run:
        run.releases = self._decoded(
            OnRelease, "SELECT data FROM releases WHERE run = ? ORDER BY rowid", [run.id]
        )
        run.toggles = self._decoded(
            ToggleFacts, "SELECT data FROM toggles WHERE run = ? ORDER BY rowid", [run.id]
        )
        with self.store.explained():
            run.cells = self._cells(run.id)
        return run

    def sides_of(self, run: str, key: tuple[str, str, str, str]) -> list[Side]:
        """The sides of one cell, whole: by release, device, toggle and guard."""
        with self.store.explained():
            rows = self.store.db.execute(
                "SELECT data FROM sides WHERE run = ? AND release = ? AND device = ? "
                "AND toggle = ? AND guard = ? ORDER BY rowid",
                (run, *key),
            ).fetchall()
            return [msgspec.json.decode(data, type=Side) for (data,) in rows]

    def took(self) -> dict[tuple[str, str, str], float]:
        """Seconds by toggle, guard and side, over all runs."""
        with self.store.explained():
            rows = self.store.db.execute(
                "SELECT toggle, guard, side, avg(seconds) FROM sides GROUP BY toggle, guard, side"
            ).fetchall()
        return {(toggle, guard, side): seconds for toggle, guard, side, seconds in rows}

    def _cells(self, run: str) -> list[Cell]:
        cells: dict[tuple[str, ...], Cell] = {}
        for release, device, toggle, guard, state, verdict, why in self.store.db.execute(
            "SELECT release, device, toggle, guard, state, verdict, why FROM cells "
            "WHERE run = ? ORDER BY release, toggle, guard",
            (run,),
        ):
            reached = Verdict(verdict) if verdict else None
            cell = Cell(guard, toggle, release, device, state, reached, why)
            cells[cell.key] = cell
        for *key, data in self.store.db.execute(
            "SELECT release, device, toggle, guard, data FROM sides WHERE run = ?", (run,)
        ):
            side = msgspec.json.decode(data, type=Side)
            if tuple(key) in cells:
                cells[tuple(key)].sides[side.side] = side
        return list(cells.values())


def _run(row: tuple[Any, ...]) -> Run:
    name, kind, started, status, seconds, process, command, settings = row
    return Run(
        id=name,
        kind=kind,
        started=started,
        status=as_it_is(status, process),
        seconds=seconds,
        command=msgspec.json.decode(command),
        settings=msgspec.json.decode(settings),
    )
