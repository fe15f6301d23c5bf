"""Runs in one SQLite file: written cell by cell, so that a kill at any moment loses none.

A rollback journal and one transaction a write: the file is whole at every moment, is one file, and
takes several writers. Nothing is kept in memory that is not in the file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.store.records import Cell, OnRelease, Run, Side, ToggleFacts, Verdict

FORMAT = 1
SCHEMA = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE runs (id TEXT PRIMARY KEY, kind TEXT, started TEXT, status TEXT, seconds REAL,
    process TEXT, command TEXT, settings TEXT);
CREATE TABLE releases (run TEXT, release TEXT, device TEXT, data TEXT,
    PRIMARY KEY (run, release, device));
CREATE TABLE toggles (run TEXT, id TEXT, data TEXT, PRIMARY KEY (run, id));
CREATE TABLE cells (run TEXT, release TEXT, device TEXT, toggle TEXT, guard TEXT, state TEXT,
    verdict TEXT, why TEXT, PRIMARY KEY (run, release, device, toggle, guard));
CREATE TABLE sides (run TEXT, release TEXT, device TEXT, toggle TEXT, guard TEXT, side TEXT,
    outcome TEXT, reach INTEGER, seconds REAL, data TEXT,
    PRIMARY KEY (run, release, device, toggle, guard, side));
"""
TABLES = ("runs", "releases", "toggles", "cells", "sides")
_SMALLEST = 512  # bytes of a SQLite file that holds anything
PATIENCE = 30.0  # seconds to wait for another writer


def default_file() -> Path:
    return paths.state() / "runs.sqlite"


class Store:
    """The runs of one file."""

    def __init__(
        self, file: Path | None = None, patience: float = PATIENCE, make: bool = True
    ) -> None:
        self.file = file or default_file()
        if not make and not _size(self.file):
            raise UnfixError(f"there is no store {self.file}")
        with self._explained():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if 0 < _size(self.file) < _SMALLEST:
                # SQLite takes it for an empty one and would write over it.
                raise sqlite3.DatabaseError("file is cut short")
            self._db = sqlite3.connect(self.file, timeout=patience, isolation_level=None)
            self._db.execute("PRAGMA synchronous = FULL")
            self._ready()

    def _ready(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == FORMAT:
            return
        if version:
            raise NotReady(f"{self.file} is of another version of unfix: move it away")
        with self._writing():
            # Another process may have made it while this one waited for its turn.
            if not self._db.execute("PRAGMA user_version").fetchone()[0]:
                for statement in SCHEMA.split(";"):
                    self._db.execute(statement)

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
            raise NotReady(
                f"the store {self.file} cannot be used: {error}; what it holds is left as it is "
                "(free the disk, end whoever holds it, or move the file away)"
            ) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One write, whole or not at all."""
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _put(self, table: str, *values: Any) -> None:
        marks = ",".join("?" * len(values))
        self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)

    # Writing

    def begin(self, run: Run) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self._writing():
            row = self._db.execute(
                "SELECT status, process FROM runs WHERE id = ?", (run.id,)
            ).fetchone()
            if row and row[0] == "running" and alive(row[1]):
                raise UnfixError(f"run {run.id} is still going on")
            self._put(
                *("runs", run.id, run.kind, run.started, "running", run.seconds, me()),
                *(_text(run.command), _text(run.settings)),
            )
            for toggle in run.toggles:
                self._put("toggles", run.id, toggle.id, _text(toggle))

    def met(self, run: str, on: OnRelease) -> None:
        with self._writing():
            self._put("releases", run, on.release, on.device, _text(on))

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
                *(side.outcome.value, side.reach, side.seconds, _text(side)),
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


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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


def me() -> str:
    """This process, so that another can tell whether it still lives: boot, pid, start."""
    return f"{_boot()} {os.getpid()} {_start_of(os.getpid())}"


def alive(process: str) -> bool:
    boot, pid, start = process.split()
    return boot != _boot() or (_start_of(int(pid)) == start)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def _start_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "-"
