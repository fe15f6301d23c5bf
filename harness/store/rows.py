"""What the kinds of runs in a store have in common: a row each, with its state, and rows that
belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from harness.errors import UnfixError
from harness.store.file import StoreFile
from harness.store.writers import alive


class Kept(Protocol):
    id: str
    status: str


Some = TypeVar("Some", bound=Kept)


class RunTables(StoreFile):
    """Runs by kind, each listed, found by its name, and taken over from another file."""

    def _runs_of(self, table: str, kind: type[Some]) -> list[Some]:
        """Every run as its own row has it, the oldest first; one that nobody runs was stopped."""
        with self._explained():
            rows = self._db.execute(
                f"SELECT status, process, data FROM {table} ORDER BY started, id"
            ).fetchall()
            found = []
            for status, process, data in rows:
                run = msgspec.json.decode(data, type=kind)
                gone = status == "running" and not alive(process)
                run.status = "stopped" if gone else status
                found.append(run)
        return found

    def _not_running(self, table: str, run: str, noun: str) -> None:
        """Refuse a run that somebody else makes at this moment; inside of a write."""
        row = self._db.execute(
            f"SELECT status, process FROM {table} WHERE id = ?", (run,)
        ).fetchone()
        if row and row[0] == "running" and alive(row[1]):
            raise UnfixError(f"{noun} {run} is still going on")

    def _named(self, runs: list[Some], name: str, noun: str) -> Some | None:
        """The one of this id, or whose id begins so; None if there is none."""
        found = [run for run in runs if run.id.startswith(name)]
        if len(found) > 1:
            raise UnfixError(f"{self.file} holds more than one {noun} {name}")
        return found[0] if found else None

    def _merge(
        self, other: RunTables, tables: Mapping[str, str], mine: list[Some], theirs: list[Some]
    ) -> None:
        """Take in those of another file that this one lacks, or has only a part of."""
        here = {run.id: run.status for run in mine}
        for run in theirs:
            if here.get(run.id) != "finished":
                self._copy_rows(other, tables, run.id)

    def _copy_rows(self, other: StoreFile, tables: Mapping[str, str], run: str) -> None:
        """One run's rows instead of those here; `tables` has each table's column for its id."""
        with self._writing():
            for table, key in tables.items():
                self._db.execute(f"DELETE FROM {table} WHERE {key} = ?", (run,))
                rows = other._db.execute(f"SELECT * FROM {table} WHERE {key} = ?", (run,))
                for row in rows.fetchall():
                    self._put(table, *row)
