"""The stored runs of all kinds: found, listed, and merged from other stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.cli.commands import KINDS
from harness.cli.run_kinds import RunKind, format_started
from harness.core.errors import UnfixError
from harness.store.database import Store


def find_run(store: Store, name: str) -> tuple[RunKind, Any] | None:
    """Find the run of this name and its kind; None for a proof: several proofs share a report."""
    for kind in KINDS.values():
        if kind.name != "prove" and (run := kind.open_table(store).find(name)) is not None:
            return kind, run
    return None


def find_newest_run(store: Store) -> tuple[RunKind, Any] | None:
    """Find the run that started last, without its items; None if the store is empty."""
    newest = [
        (kind, runs[-1]) for kind in KINDS.values() if (runs := kind.open_table(store).list_runs())
    ]
    return max(newest, key=lambda pair: format_started(pair[1]), default=None)


def list_runs(store: Store) -> list[tuple[RunKind, Any]]:
    """Return each run of a store, with the part of it that a list shows."""
    runs = []
    for kind in KINDS.values():
        table = kind.open_table(store)
        runs += [
            (kind, run if kind.is_row_enough else table.load_whole(run))
            for run in table.list_runs()
        ]
    return runs


def merge_store(store: Store, other_file: Path) -> list[str]:
    """Copy the runs of another store into this one. Return the ids of its proofs."""
    if other_file.resolve() == store.file.resolve():
        raise UnfixError(f"{other_file} is this store itself")
    other = Store(other_file, create=False)
    ids = {
        name: kind.open_table(store).merge(kind.open_table(other)) for name, kind in KINDS.items()
    }
    other.close()
    return ids["prove"]
