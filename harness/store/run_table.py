"""The stored runs of one kind: begin, save, list, find, load and merge.

A kind adds its value types and names the lists whose elements are rows of their own. Example: a
search has `item_types = {"trials": BisectTrial}`; its row in `runs` has `trials` empty,
and `load_whole` fills the list from `items` again.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

import msgspec

from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.store.database import Store, encode_json
from harness.store.writer_process import identify_this_process, is_process_alive

ShardNumber = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
# An id names files, such as the page of a run, and a store may come from elsewhere.
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class StoredRun(Protocol):
    id: str
    status: RunStatus
    seconds: float


ListedRunT = TypeVar("ListedRunT", bound=StoredRun)  # a listed run, without its items
WholeRunT = TypeVar("WholeRunT", bound=StoredRun)
ItemT = TypeVar("ItemT")


class RunTable(Generic[ListedRunT, WholeRunT]):
    """The runs of one kind in a store."""

    kind: ClassVar[str]
    noun: ClassVar[str]
    item_types: ClassVar[dict[str, type[Any]]] = {}  # by the field of the run that lists them
    listed_type: type[ListedRunT]

    def __init__(self, store: Store) -> None:
        self.store = store

    # Writing

    def begin(self, run: WholeRunT) -> None:
        """Store a new or resumed run; refuse a run that another process executes."""
        with self.store.write_transaction():
            row = self.store.db.execute(
                "SELECT status, process FROM runs WHERE kind = ? AND id = ?", (self.kind, run.id)
            ).fetchone()
            if row and resolve_status(*row) is RunStatus.RUNNING:
                raise UnfixError(f"{self.noun} {run.id} is still running")
            self._write_run(run, RunStatus.RUNNING)

    @contextlib.contextmanager
    def record_run(self, run: WholeRunT) -> Iterator[None]:
        """Store a run when it begins and when it ends: as stopped, if the block raises."""
        started = time.monotonic() - run.seconds
        self.begin(run)
        run.status = RunStatus.STOPPED
        try:
            yield
            run.status = RunStatus.FINISHED
        finally:
            run.seconds = time.monotonic() - started
            self.save(run)

    def save(self, run: WholeRunT) -> None:
        """Write a run's own row with its present status."""
        with self.store.write_transaction():
            self._write_run(run, run.status)

    def _write_run(self, run: WholeRunT, status: RunStatus) -> None:
        self._replace_row(
            *("runs", self.kind, run.id, self._format_started(run), status),
            *(identify_this_process(), self._encode_run(run, status)),
        )

    def _format_started(self, run: Any) -> str:
        return str(run.started)

    def _encode_run(self, run: Any, status: RunStatus) -> str:
        empty: dict[str, Any] = {name: [] for name in self.item_types}
        return encode_json(msgspec.structs.replace(run, **empty, status=status))

    def save_item(self, run_id: str, part: str, value: Any, **columns: Any) -> None:
        """Write one item at once, in a transaction of its own."""
        with self.store.write_transaction():
            self._write_item(run_id, part, value, **columns)

    def _write_item(
        self,
        run_id: str,
        part: str,
        value: Any,
        *,
        owner: str = "",
        key: str = "",
        position: int = 0,
        outcome: str | None = None,
        seconds: float = 0.0,
        overwrite: bool = True,
    ) -> None:
        """Write one item inside of a transaction."""
        data = value if isinstance(value, str) else encode_json(value)
        update = (
            "UPDATE SET position=excluded.position, outcome=excluded.outcome, "
            "seconds=excluded.seconds, data=excluded.data"
        )
        self.store.db.execute(
            "INSERT INTO items VALUES (?,?,?,?,?,?,?,?) "
            f"ON CONFLICT DO {update if overwrite else 'NOTHING'}",
            (run_id, part, owner, key, position, outcome, seconds, data),
        )

    def _replace_row(self, table: str, *values: Any) -> None:
        marks = ",".join("?" * len(values))
        self.store.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)

    # Reading

    def list_runs(self) -> list[ListedRunT]:
        """Return every run without its items, the oldest first; within a second, as they ended."""
        rows = self.store.query(
            "SELECT id, started, status, process, data FROM runs WHERE kind = ? "
            "ORDER BY started, rowid",
            self.kind,
        )
        with self.store.explain_content():
            return [self._read_run(*row) for row in rows]

    def _read_run(self, run_id: str, started: str, status: str, process: str, data: str) -> Any:
        """Read a run's own row, which may come from a store of another machine."""
        run: Any = self.store.decode(data, self.listed_type)
        if run.id != run_id or not _RUN_ID.fullmatch(run.id):
            raise UnfixError(f"{self.store.file} has a run with a wrong id: {run_id!r}")
        if started != self._format_started(run):
            raise ValueError(f"run {run_id} started at {started!r} and at {run.started!r}")
        run.status = resolve_status(status, process)
        return run

    def load_whole(self, run: ListedRunT) -> WholeRunT:
        """Load a listed run with its items."""
        with self.store.explain_content():
            return self._load_whole(run)

    def _load_whole(self, run: ListedRunT) -> WholeRunT:
        items = {name: self.load_items(run.id, name) for name in self.item_types}
        return cast("WholeRunT", msgspec.structs.replace(cast("Any", run), **items))

    def load_items(self, run_id: str, part: str) -> list[Any]:
        query = "SELECT data FROM items WHERE run = ? AND part = ? ORDER BY position, rowid"
        value_type = self.item_types[part]
        return [
            self.store.decode(data, value_type) for (data,) in self.store.query(query, run_id, part)
        ]

    def load_owned_items(
        self, run_id: str, part: str, value_type: type[ItemT], owner: str | None = None
    ) -> Iterator[tuple[str, ItemT]]:
        """Return items with their owners, in the order of owners, or only one owner's items."""
        query = "SELECT owner, data FROM items WHERE run = ? AND part = ?"
        query += " ORDER BY owner, position, rowid" if owner is None else " AND owner = ?"
        for name, data in self.store.query(query, run_id, part, *([owner] if owner else [])):
            yield name, self.store.decode(data, value_type)

    def find(self, name: str) -> WholeRunT | None:
        """Return the whole run whose id begins so, or None."""
        runs = [run for run in self.list_runs() if run.id.startswith(name)]
        if len(runs) > 1:
            raise UnfixError(f"{self.store.file} holds more than one {self.noun} {name}")
        return self.load_whole(runs[0]) if runs else None

    def get(self, name: str) -> WholeRunT:
        run = self.find(name)
        if run is None:
            raise UnfixError(
                f"{self.store.file} holds no {self.noun} {name}: `unfix report --list` shows them"
            )
        return run

    # Merging

    def merge(self, other: Self) -> list[str]:
        """Copy the runs of another store that are missing or less advanced here; return all ids."""
        own_runs = {run.id: run for run in self.list_runs()}
        runs = other.list_runs()
        for run in runs:
            own = own_runs.get(run.id)
            if own is None or self._is_behind(own, other.measure_progress(run)):
                other.load_whole(run)  # so that no item which cannot be read is copied
                self._copy_run(other, run.id)
        return [run.id for run in runs]

    def _is_behind(self, own_run: ListedRunT, their_progress: tuple[Any, ...]) -> bool:
        """Return whether the other copy has more; the row of an unfinished run may have grown."""
        own = self.measure_progress(own_run)
        return their_progress > own or (
            their_progress == own and own_run.status is not RunStatus.FINISHED
        )

    def measure_progress(self, run: ListedRunT) -> tuple[Any, ...]:
        """Measure a run's progress. The copy of a run with more progress is the newer one."""
        ((outcomes, items),) = self.store.query(
            "SELECT count(outcome), count(*) FROM items WHERE run = ?", run.id
        )
        return run.status is RunStatus.FINISHED, outcomes, items

    def _copy_run(self, other: Self, run_id: str) -> None:
        """Replace a run's rows by those of another store."""
        rows = {
            "runs": ("kind = ? AND id = ?", (self.kind, run_id)),
            "items": ("run = ?", (run_id,)),
        }
        with self.store.write_transaction():
            for table, (condition, values) in rows.items():
                self.store.db.execute(f"DELETE FROM {table} WHERE {condition}", values)
                for row in other.store.query(
                    f"SELECT * FROM {table} WHERE {condition} ORDER BY rowid", *values
                ):
                    self._replace_row(table, *row)


def resolve_status(status: str, process: str) -> RunStatus:
    """Return the status of a run; `running` becomes `stopped` when its process is gone."""
    is_gone = status == RunStatus.RUNNING and not is_process_alive(process)
    return RunStatus.STOPPED if is_gone else RunStatus(status)
