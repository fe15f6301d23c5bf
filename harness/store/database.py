"""The SQLite file of all stored runs.

Two tables serve all kinds of runs. `runs` has one row a run: its kind, start, status, the process
that executes it, and the run itself as JSON without its long lists. `items` has one row for each
element of those lists (a trial of a search, a side of a cell, an attempt at a matrix cell), written
as it ends. `part` names the list, `owner` the item's owner in the run (empty for most), `key`
the item itself. Example: the buggy side of a cell is part `sides`, owner
`["0.5.18", "cpu", "27460", "t.py::test_a"]`, key `buggy`, outcome `failed`, seconds 1.5.

The invariant: each write is one transaction, and a rollback journal preserves a valid file at every
moment. So a killed run loses no finished write, and several processes can write at the same time.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError

ValueT = TypeVar("ValueT")
FORMAT_VERSION = 8
SCHEMA = (
    "CREATE TABLE runs (kind TEXT, id TEXT, started TEXT, status TEXT, process TEXT, data TEXT, "
    "PRIMARY KEY (kind, id))",
    "CREATE TABLE items (run TEXT, part TEXT, owner TEXT, key TEXT, position INTEGER, "
    "outcome TEXT, seconds REAL, data TEXT, PRIMARY KEY (run, part, owner, key))",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)
_MIN_FILE_BYTES = 512  # a SQLite file with any content is at least this long
LOCK_TIMEOUT = 30.0  # seconds to wait for another writer


def find_default_store() -> Path:
    return paths.state_folder() / "runs.sqlite"


class _Connection(sqlite3.Connection):
    """A connection that closes itself on collection; Python 3.13 warns of an open one."""

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # collected by another thread
            self.close()


class Store:
    """A store's file: opens it, explains failures to open it, and writes in transactions."""

    def __init__(
        self, file: Path | None = None, lock_timeout: float = LOCK_TIMEOUT, create: bool = True
    ) -> None:
        self.file = file or find_default_store()
        if not create and not _read_file_size(self.file):
            raise UnfixError(f"there is no store {self.file}")
        with self.explain_errors():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if 0 < _read_file_size(self.file) < _MIN_FILE_BYTES:
                # SQLite would treat such a file as an empty one and overwrite it.
                raise sqlite3.DatabaseError("file is cut short")
            self.db = sqlite3.connect(
                self.file, timeout=lock_timeout, isolation_level=None, factory=_Connection
            )
            self.db.execute("PRAGMA synchronous = FULL")
            self._create_tables()

    def _read_format_version(self) -> int:
        version: int = self.db.execute("PRAGMA user_version").fetchone()[0]
        return version

    def _create_tables(self) -> None:
        version = self._read_format_version()
        if version not in (0, FORMAT_VERSION):
            raise NotReadyError(
                f"{self.file} is of another version of unfix (its format is {version}, this "
                f"version reads {FORMAT_VERSION}): move it away"
            )
        if not version:
            with self.write_transaction():
                # Another process may have created them while this one waited for the lock.
                if not self._read_format_version():
                    for statement in SCHEMA:
                        self.db.execute(statement)

    def close(self) -> None:
        self.db.close()

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, json.JSONDecodeError, OSError) as error:
            raise NotReadyError(
                f"the store {self.file} cannot be used: {error}; its content is left as it is "
                "(free disk space, end the process that holds it, or move the file away)"
            ) from error

    @contextlib.contextmanager
    def explain_content(self) -> Iterator[None]:
        """Turn what a store holds only if somebody edited it into one sentence.

        Whatever such a value breaks while it is read or shown, the sentence names the place: it is
        a bug of ours if nobody edited the store.
        """
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise NotReadyError(
                f"the store {self.file} holds what unfix does not write: {type(error).__name__}: "
                f"{error} (at {Path(place.filename).name}:{place.lineno})"
            ) from error

    @contextlib.contextmanager
    def write_transaction(self) -> Iterator[None]:
        """Apply all writes of the block in one transaction."""
        with self.explain_errors():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")

    def query(self, sql: str, *values: Any) -> list[Any]:
        with self.explain_errors():
            return self.db.execute(sql, values).fetchall()

    def decode(self, data: str, value_type: type[ValueT]) -> ValueT:
        with self.explain_errors():
            return decode_json(data, value_type)


def _read_file_size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def decode_json(data: str, value_type: type[ValueT]) -> ValueT:
    """Decode a value from JSON or Python's dialect of it, which has NaN and lone surrogates."""
    try:
        return msgspec.json.decode(data, type=value_type)
    except msgspec.MsgspecError:
        return msgspec.convert(json.loads(data), value_type)
