"""What the kinds of runs in a store have in common: a row each, with its state, and rows that
belong to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from harness.errors import UnfixError
from harness.store.file import StoreFile
from harness.store.writers import alive

ENDED = ("finished", "done")


class Kept(Protocol):
    id: str
    status: str


Some = TypeVar("Some", bound=Kept)  # a run as a list has it
Whole = TypeVar("Whole")  # and with all that belongs to it


class Table(Generic[Some, Whole]):
    """Runs of one kind: each listed, found by its name, and taken over from another file."""

    noun: ClassVar[str]
    # Each of its tables, with the column that holds a run's id; the first has a row a run.
    tables: ClassVar[dict[str, str]]
    kind: type[Some]

    def __init__(self, store: StoreFile) -> None:
        self.store = store

    def all(self) -> list[Some]:
        """Every run as its own row has it, the oldest first; one that nobody runs was stopped."""
        with self.store.explained():
            rows = self.store.db.execute(
                f"SELECT status, process, data FROM {next(iter(self.tables))} ORDER BY started, id"
            ).fetchall()
            found = []
            for status, process, data in rows:
                run = msgspec.json.decode(data, type=self.kind)
                run.status = as_it_is(status, process)
                found.append(run)
        return found

    def whole(self, run: Some) -> Whole:
        """A run of `all` with everything that the file holds of it."""
        raise NotImplementedError

    def find(self, name: str) -> Whole | None:
        """A whole run, by its id or by how its id begins; None if there is none."""
        found = [run for run in self.all() if run.id.startswith(name)]
        if len(found) > 1:
            raise UnfixError(f"{self.store.file} holds more than one {self.noun} {name}")
        return self.whole(found[0]) if found else None

    def get(self, name: str) -> Whole:
        found = self.find(name)
        if found is None:
            raise UnfixError(
                f"{self.store.file} holds no {self.noun} {name}: `unfix report --list` shows them"
            )
        return found

    def newest(self) -> Whole | None:
        found = self.all()
        return self.whole(found[-1]) if found else None

    def merge(self, other: Self) -> list[str]:
        """Take in those of another file that this one lacks, or has less of; gives their ids."""
        here = {run.id: run for run in self.all()}
        theirs = other.all()
        for run in theirs:
            mine = here.get(run.id)
            if mine is None or self._lacks(mine, other.progress(run)):
                self._copy(other, run.id)
        return [run.id for run in theirs]

    def _lacks(self, mine: Some, theirs: tuple[Any, ...]) -> bool:
        """Of one that had not ended when it was taken over, a row may have grown in itself."""
        own = self.progress(mine)
        return theirs > own or (theirs == own and mine.status not in ENDED)

    def progress(self, run: Some) -> tuple[Any, ...]:
        """How far a run has come: of two copies the one that is further along is the run."""
        return (run.status in ENDED, *map(self._rows_of(run.id), [*self.tables][1:]))

    def _rows_of(self, run: str) -> Any:
        def count(table: str) -> int:
            query = f"SELECT count(*) FROM {table} WHERE {self.tables[table]} = ?"
            with self.store.explained():
                number: int = self.store.db.execute(query, (run,)).fetchone()[0]
            return number

        return count

    def _copy(self, other: Self, run: str) -> None:
        """One run's rows instead of those here."""
        with self.store.writing():
            for table, key in self.tables.items():
                self.store.db.execute(f"DELETE FROM {table} WHERE {key} = ?", (run,))
                rows = other.store.db.execute(f"SELECT * FROM {table} WHERE {key} = ?", (run,))
                for row in rows.fetchall():
                    self.store.put(table, *row)

    def _not_running(self, run: str) -> None:
        """Refuse a run that somebody else makes at this moment; inside of a write."""
        query = f"SELECT status, process FROM {next(iter(self.tables))} WHERE id = ?"
        row = self.store.db.execute(query, (run,)).fetchone()
        if row and as_it_is(*row) == "running":
            raise UnfixError(f"{self.noun} {run} is still going on")

    def _decoded(self, kind: type[Any], query: str, values: Iterable[Any]) -> list[Any]:
        """The JSON that a query finds, one column a row, as values."""
        with self.store.explained():
            rows = self.store.db.execute(query, tuple(values)).fetchall()
            return [msgspec.json.decode(data, type=kind) for (data,) in rows]


def as_it_is(status: str, process: str) -> str:
    """What is said to run and has nobody who runs it was stopped."""
    return "stopped" if status == "running" and not alive(process) else status
