"""What the kinds of runs in a store have in common: a row each, with its state, and rows that
belong to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from harness.core.errors import UnfixError
from harness.store.sqlite_file import StoreFile
from harness.store.writer_process import is_process_alive

ENDED_STATUSES = ("finished", "done")


class StoredRun(Protocol):
    id: str
    status: str


ListedRunT = TypeVar("ListedRunT", bound=StoredRun)  # a run as a list has it
WholeRunT = TypeVar("WholeRunT")  # and with all that belongs to it


class RunTable(Generic[ListedRunT, WholeRunT]):
    """Runs of one kind: each listed, found by its name, and taken over from another file."""

    noun: ClassVar[str]
    # Each of its tables, with the column that holds a run's id; the first has a row a run.
    tables: ClassVar[dict[str, str]]
    listed_type: type[ListedRunT]

    def __init__(self, store: StoreFile) -> None:
        self.store = store

    def list_runs(self) -> list[ListedRunT]:
        """Every run as its own row has it, the oldest first; one that nobody runs was stopped."""
        with self.store.explain_errors():
            rows = self.store.db.execute(
                f"SELECT status, process, data FROM {next(iter(self.tables))} ORDER BY started, id"
            ).fetchall()
            found = []
            for status, process, data in rows:
                run = msgspec.json.decode(data, type=self.listed_type)
                run.status = resolve_status(status, process)
                found.append(run)
        return found

    def load_whole(self, run: ListedRunT) -> WholeRunT:
        """A run of `all` with everything that the file holds of it."""
        raise NotImplementedError

    def find(self, name: str) -> WholeRunT | None:
        """A whole run, by its id or by how its id begins; None if there is none."""
        found = [run for run in self.list_runs() if run.id.startswith(name)]
        if len(found) > 1:
            raise UnfixError(f"{self.store.file} holds more than one {self.noun} {name}")
        return self.load_whole(found[0]) if found else None

    def get(self, name: str) -> WholeRunT:
        found = self.find(name)
        if found is None:
            raise UnfixError(
                f"{self.store.file} holds no {self.noun} {name}: `unfix report --list` shows them"
            )
        return found

    def load_newest(self) -> WholeRunT | None:
        found = self.list_runs()
        return self.load_whole(found[-1]) if found else None

    def merge(self, other: Self) -> list[str]:
        """Take in those of another file that this one lacks, or has less of; gives their ids."""
        here = {run.id: run for run in self.list_runs()}
        theirs = other.list_runs()
        for run in theirs:
            mine = here.get(run.id)
            if mine is None or self._is_behind(mine, other.measure_progress(run)):
                self._copy_run(other, run.id)
        return [run.id for run in theirs]

    def _is_behind(self, own_run: ListedRunT, their_progress: tuple[Any, ...]) -> bool:
        """Of one that had not ended when it was taken over, a row may have grown in itself."""
        own = self.measure_progress(own_run)
        return their_progress > own or (
            their_progress == own and own_run.status not in ENDED_STATUSES
        )

    def measure_progress(self, run: ListedRunT) -> tuple[Any, ...]:
        """How far a run has come: of two copies the one that is further along is the run."""
        return (
            run.status in ENDED_STATUSES,
            *map(self._make_row_counter(run.id), [*self.tables][1:]),
        )

    def _make_row_counter(self, run: str) -> Any:
        def count(table: str) -> int:
            query = f"SELECT count(*) FROM {table} WHERE {self.tables[table]} = ?"
            with self.store.explain_errors():
                number: int = self.store.db.execute(query, (run,)).fetchone()[0]
            return number

        return count

    def _copy_run(self, other: Self, run: str) -> None:
        """One run's rows instead of those here."""
        with self.store.write_transaction():
            for table, key in self.tables.items():
                self.store.db.execute(f"DELETE FROM {table} WHERE {key} = ?", (run,))
                rows = other.store.db.execute(f"SELECT * FROM {table} WHERE {key} = ?", (run,))
                for row in rows.fetchall():
                    self.store.replace_row(table, *row)

    def _refuse_if_running(self, run: str) -> None:
        """Refuse a run that somebody else makes at this moment; inside of a write."""
        query = f"SELECT status, process FROM {next(iter(self.tables))} WHERE id = ?"
        row = self.store.db.execute(query, (run,)).fetchone()
        if row and resolve_status(*row) == "running":
            raise UnfixError(f"{self.noun} {run} is still going on")

    def _decode_rows(self, value_type: type[Any], query: str, values: Iterable[Any]) -> list[Any]:
        """The JSON that a query finds, one column a row, as values."""
        with self.store.explain_errors():
            rows = self.store.db.execute(query, tuple(values)).fetchall()
            return [msgspec.json.decode(data, type=value_type) for (data,) in rows]


def resolve_status(status: str, process: str) -> str:
    """What is said to run and has nobody who runs it was stopped."""
    return "stopped" if status == "running" and not is_process_alive(process) else status
