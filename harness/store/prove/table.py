"""The proofs and lifecycles of a store: written cell by cell, so that a kill loses none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from harness.core.errors import UnfixError
from harness.store.prove.values import (
    CellResult,
    CellVerdict,
    ProveRun,
    ReleaseFacts,
    SideResult,
    ToggleFacts,
)
from harness.store.run_table import RunTable, resolve_status
from harness.store.sqlite_file import encode_json
from harness.store.writer_process import identify_this_process


class ProveTable(RunTable[ProveRun, ProveRun]):
    """What `unfix prove` and `unfix lifecycle` leave behind."""

    noun = "run"
    tables: ClassVar = {"runs": "id"} | dict.fromkeys(
        ("releases", "toggles", "cells", "sides"), "run"
    )
    listed_type = ProveRun

    # Writing

    def begin(self, run: ProveRun) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self.store.write_transaction():
            self._refuse_if_running(run.id)
            self.store.replace_row(
                *(
                    "runs",
                    run.id,
                    run.kind,
                    run.started,
                    "running",
                    run.seconds,
                    identify_this_process(),
                ),
                *(encode_json(run.command), encode_json(run.settings)),
            )
            for toggle in run.toggles:
                self.store.replace_row("toggles", run.id, toggle.id, encode_json(toggle))

    def save_release(self, run: str, facts: ReleaseFacts) -> None:
        with self.store.write_transaction():
            self.store.replace_row("releases", run, facts.release, facts.device, encode_json(facts))

    def save_planned_cells(self, run: str, cells: Iterable[CellResult]) -> None:
        """All cells of a release, before the first is run."""
        with self.store.write_transaction():
            for cell in cells:
                self.store.db.execute(
                    "INSERT OR IGNORE INTO cells VALUES (?,?,?,?,?,?,?,?)",
                    (run, *cell.key, cell.state, cell.verdict, cell.why),
                )

    def save_side(self, run: str, cell: CellResult, result: SideResult) -> None:
        """One side of a cell, as it ends."""
        with self.store.write_transaction():
            self.store.replace_row(
                *("sides", run, *cell.key, result.side),
                *(result.outcome.value, result.reach, result.seconds, encode_json(result)),
            )

    def save_verdict(self, run: str, cell: CellResult) -> None:
        with self.store.write_transaction():
            verdict = cell.verdict.value if cell.verdict else None
            self.store.replace_row("cells", run, *cell.key, cell.state, verdict, cell.why)

    def end(self, run: str, status: str, seconds: float) -> None:
        with self.store.write_transaction():
            self.store.db.execute(
                "UPDATE runs SET status = ?, seconds = ? WHERE id = ?", (status, seconds, run)
            )

    def measure_progress(self, run: ProveRun) -> tuple[Any, ...]:
        with self.store.explain_errors():
            done: int = self.store.db.execute(
                "SELECT count(*) FROM cells WHERE run = ? AND verdict IS NOT NULL", (run.id,)
            ).fetchone()[0]
        return run.status == "finished", done

    # Reading

    def list_runs(self) -> list[ProveRun]:
        """Every run without its cells, the oldest first."""
        with self.store.explain_errors():
            rows = self.store.db.execute(
                "SELECT id, kind, started, status, seconds, process, command, settings FROM runs "
                "ORDER BY started, id"
            ).fetchall()
        return [_make_run_from_row(row) for row in rows]

    def find_latest(self, kind: str | None = None) -> ProveRun:
        """The newest run of a kind that met any cells, without them: a wrong call met none."""
        with self.store.explain_errors():
            some = {name for (name,) in self.store.db.execute("SELECT DISTINCT run FROM cells")}
        runs = [run for run in reversed(self.list_runs()) if kind in (None, run.kind)]
        for run in [run for run in runs if run.id in some] + runs[:1]:
            return run
        what = f"`unfix {kind}`" if kind else "anything"
        raise UnfixError(f"{self.store.file} holds no run of {what} yet")

    def load_whole(self, run: ProveRun) -> ProveRun:
        run.releases = self._decode_rows(
            ReleaseFacts, "SELECT data FROM releases WHERE run = ? ORDER BY rowid", [run.id]
        )
        run.toggles = self._decode_rows(
            ToggleFacts, "SELECT data FROM toggles WHERE run = ? ORDER BY rowid", [run.id]
        )
        with self.store.explain_errors():
            run.cells = self._load_cells(run.id)
        return run

    def load_sides(self, run: str, key: tuple[str, str, str, str]) -> list[SideResult]:
        """The sides of one cell, whole: by release, device, toggle and guard."""
        with self.store.explain_errors():
            rows = self.store.db.execute(
                "SELECT data FROM sides WHERE run = ? AND release = ? AND device = ? "
                "AND toggle = ? AND guard = ? ORDER BY rowid",
                (run, *key),
            ).fetchall()
            return [msgspec.json.decode(data, type=SideResult) for (data,) in rows]

    def load_average_seconds(self) -> dict[tuple[str, str, str], float]:
        """Seconds by toggle, guard and side, over all runs."""
        with self.store.explain_errors():
            rows = self.store.db.execute(
                "SELECT toggle, guard, side, avg(seconds) FROM sides GROUP BY toggle, guard, side"
            ).fetchall()
        return {(toggle, guard, side): seconds for toggle, guard, side, seconds in rows}

    def _load_cells(self, run: str) -> list[CellResult]:
        cells: dict[tuple[str, ...], CellResult] = {}
        for release, device, toggle, guard, state, verdict, why in self.store.db.execute(
            "SELECT release, device, toggle, guard, state, verdict, why FROM cells "
            "WHERE run = ? ORDER BY release, toggle, guard",
            (run,),
        ):
            reached = CellVerdict(verdict) if verdict else None
            cell = CellResult(guard, toggle, release, device, state, reached, why)
            cells[cell.key] = cell
        for *key, data in self.store.db.execute(
            "SELECT release, device, toggle, guard, data FROM sides WHERE run = ?", (run,)
        ):
            side = msgspec.json.decode(data, type=SideResult)
            if tuple(key) in cells:
                cells[tuple(key)].sides[side.side] = side
        return list(cells.values())


def _make_run_from_row(row: tuple[Any, ...]) -> ProveRun:
    name, kind, started, status, seconds, process, command, settings = row
    return ProveRun(
        id=name,
        kind=kind,
        started=started,
        status=resolve_status(status, process),
        seconds=seconds,
        command=msgspec.json.decode(command),
        settings=msgspec.json.decode(settings),
    )
