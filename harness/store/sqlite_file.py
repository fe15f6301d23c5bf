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

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError

FORMAT_VERSION = 5
EVALUATION_TABLES = """
CREATE TABLE evaluations (identity TEXT PRIMARY KEY, started REAL, state TEXT, name TEXT,
    process TEXT, listed TEXT, data TEXT);
"""
MATRIX_TABLES = """
CREATE TABLE IF NOT EXISTS matrices (id TEXT PRIMARY KEY, started TEXT, status TEXT,
    process TEXT, plan TEXT, number INTEGER, of INTEGER, data TEXT);
CREATE TABLE IF NOT EXISTS matrix_cells (run TEXT, place INTEGER, cell TEXT, data TEXT,
    PRIMARY KEY (run, cell));
CREATE TABLE IF NOT EXISTS matrix_attempts (run TEXT, cell TEXT, number INTEGER, outcome TEXT,
    seconds REAL, last INTEGER, data TEXT, PRIMARY KEY (run, cell, number));
"""
FUZZ_TABLES = """
CREATE TABLE IF NOT EXISTS fuzzings (id TEXT PRIMARY KEY, started TEXT, status TEXT, process TEXT,
    data TEXT);
"""
MUTATION_TABLES = """
CREATE TABLE IF NOT EXISTS mutations (id TEXT PRIMARY KEY, started TEXT, status TEXT,
    process TEXT, data TEXT);
CREATE TABLE IF NOT EXISTS fates (run TEXT, fault TEXT, number INTEGER, fate TEXT, data TEXT,
    PRIMARY KEY (run, fault));
"""
SCHEMA = f"""
PRAGMA user_version = {FORMAT_VERSION};
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
{EVALUATION_TABLES}{MATRIX_TABLES}{FUZZ_TABLES}{MUTATION_TABLES}"""
MIGRATIONS = {  # what an older file lacks
    2: f"PRAGMA user_version = {FORMAT_VERSION}; {EVALUATION_TABLES}{MATRIX_TABLES}{FUZZ_TABLES}{MUTATION_TABLES}",
    3: f"PRAGMA user_version = {FORMAT_VERSION}; {MATRIX_TABLES}{FUZZ_TABLES}{MUTATION_TABLES}",
    4: f"PRAGMA user_version = {FORMAT_VERSION}; {FUZZ_TABLES}{MUTATION_TABLES}",
}
_MIN_FILE_BYTES = 512  # bytes of a SQLite file that holds anything
LOCK_TIMEOUT = 30.0  # seconds to wait for another writer


def find_default_store() -> Path:
    return paths.state_folder() / "runs.sqlite"


class _Connection(sqlite3.Connection):
    """Closed when nobody has it any more, of which Python 3.13 warns otherwise."""

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # collected by another thread
            self.close()


class StoreFile:
    """The file itself: opened, explained where it cannot be, written whole or not at all."""

    def __init__(
        self, file: Path | None = None, lock_timeout: float = LOCK_TIMEOUT, create: bool = True
    ) -> None:
        self.file = file or find_default_store()
        if not create and not _read_file_size(self.file):
            raise UnfixError(f"there is no store {self.file}")
        with self.explain_errors():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if 0 < _read_file_size(self.file) < _MIN_FILE_BYTES:
                # SQLite takes it for an empty one and would write over it.
                raise sqlite3.DatabaseError("file is cut short")
            self.db = sqlite3.connect(
                self.file, timeout=lock_timeout, isolation_level=None, factory=_Connection
            )
            self.db.execute("PRAGMA synchronous = FULL")
            self._create_or_migrate()

    def _create_or_migrate(self) -> None:
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version == FORMAT_VERSION:
            return
        if version and version not in MIGRATIONS:
            raise NotReadyError(f"{self.file} is of another version of unfix: move it away")
        with self.write_transaction():
            # Another process may have made it while this one waited for its turn.
            now = self.db.execute("PRAGMA user_version").fetchone()[0]
            if now == version:
                for statement in MIGRATIONS.get(version, SCHEMA).split(";"):
                    self.db.execute(statement)

    def close(self) -> None:
        self.db.close()

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, json.JSONDecodeError, OSError) as error:
            raise NotReadyError(
                f"the store {self.file} cannot be used: {error}; what it holds is left as it is "
                "(free the disk, end whoever holds it, or move the file away)"
            ) from error

    @contextlib.contextmanager
    def write_transaction(self) -> Iterator[None]:
        """One write, whole or not at all."""
        with self.explain_errors():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")

    def replace_row(self, table: str, *values: Any) -> None:
        marks = ",".join("?" * len(values))
        self.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)


def _read_file_size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
