"""The SQLite file that holds what was run.

A rollback journal and one transaction a write: the file is whole at every moment, is one file, and
takes several writers.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness import paths
from harness.errors import NotReady, UnfixError

FORMAT = 5
EVALUATIONS = """
CREATE TABLE evaluations (identity TEXT PRIMARY KEY, started REAL, state TEXT, name TEXT,
    process TEXT, listed TEXT, data TEXT);
"""
MATRICES = """
CREATE TABLE IF NOT EXISTS matrices (id TEXT PRIMARY KEY, started TEXT, status TEXT,
    process TEXT, plan TEXT, number INTEGER, of INTEGER, data TEXT);
CREATE TABLE IF NOT EXISTS matrix_cells (run TEXT, place INTEGER, cell TEXT, data TEXT,
    PRIMARY KEY (run, cell));
CREATE TABLE IF NOT EXISTS matrix_attempts (run TEXT, cell TEXT, number INTEGER, outcome TEXT,
    seconds REAL, last INTEGER, data TEXT, PRIMARY KEY (run, cell, number));
"""
FUZZINGS = """
CREATE TABLE IF NOT EXISTS fuzzings (id TEXT PRIMARY KEY, started TEXT, status TEXT, process TEXT,
    data TEXT);
"""
MUTATIONS = """
CREATE TABLE IF NOT EXISTS mutations (id TEXT PRIMARY KEY, started TEXT, status TEXT,
    process TEXT, data TEXT);
CREATE TABLE IF NOT EXISTS fates (run TEXT, fault TEXT, number INTEGER, fate TEXT, data TEXT,
    PRIMARY KEY (run, fault));
"""
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
CREATE TABLE searches (id TEXT PRIMARY KEY, kind TEXT, started TEXT, status TEXT, process TEXT,
    data TEXT);
CREATE TABLE trials (search TEXT, number INTEGER, data TEXT, PRIMARY KEY (search, number));
{EVALUATIONS}{MATRICES}{FUZZINGS}{MUTATIONS}"""
LATER = {  # what an older file lacks
    2: f"PRAGMA user_version = {FORMAT}; {EVALUATIONS}{MATRICES}{FUZZINGS}{MUTATIONS}",
    3: f"PRAGMA user_version = {FORMAT}; {MATRICES}{FUZZINGS}{MUTATIONS}",
    4: f"PRAGMA user_version = {FORMAT}; {FUZZINGS}{MUTATIONS}",
}
_SMALLEST = 512  # bytes of a SQLite file that holds anything
PATIENCE = 30.0  # seconds to wait for another writer


def default_file() -> Path:
    return paths.state() / "runs.sqlite"


class _Connection(sqlite3.Connection):
    """Closed when nobody has it any more, of which Python 3.13 warns otherwise."""

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # collected by another thread
            self.close()


class StoreFile:
    """The file itself: opened, explained where it cannot be, written whole or not at all."""

    def __init__(
        self, file: Path | None = None, patience: float = PATIENCE, make: bool = True
    ) -> None:
        self.file = file or default_file()
        if not make and not _size(self.file):
            raise UnfixError(f"there is no store {self.file}")
        with self.explained():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if 0 < _size(self.file) < _SMALLEST:
                # SQLite takes it for an empty one and would write over it.
                raise sqlite3.DatabaseError("file is cut short")
            self.db = sqlite3.connect(
                self.file, timeout=patience, isolation_level=None, factory=_Connection
            )
            self.db.execute("PRAGMA synchronous = FULL")
            self._ready()

    def _ready(self) -> None:
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version == FORMAT:
            return
        if version and version not in LATER:
            raise NotReady(f"{self.file} is of another version of unfix: move it away")
        with self.writing():
            # Another process may have made it while this one waited for its turn.
            now = self.db.execute("PRAGMA user_version").fetchone()[0]
            if now == version:
                for statement in LATER.get(version, SCHEMA).split(";"):
                    self.db.execute(statement)

    def close(self) -> None:
        self.db.close()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, json.JSONDecodeError, OSError) as error:
            raise NotReady(
                f"the store {self.file} cannot be used: {error}; what it holds is left as it is "
                "(free the disk, end whoever holds it, or move the file away)"
            ) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """One write, whole or not at all."""
        with self.explained():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")

    def put(self, table: str, *values: Any) -> None:
        marks = ",".join("?" * len(values))
        self.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def as_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
