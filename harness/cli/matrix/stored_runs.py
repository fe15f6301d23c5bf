"""The stored matrix run that `unfix report` shows: one run, or the merged shards of one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import run_lookup
from harness.cli.commands import KINDS
from harness.core.errors import UnfixError
from harness.store.matrix.table import MatrixTable

if TYPE_CHECKING:
    from harness.store.database import Store
    from harness.store.matrix.values import MatrixRun


def find_requested_run(store: Store, arguments: argparse.Namespace) -> MatrixRun | None:
    """Find the matrix run of the arguments and merge its shards; None if they name no such run."""
    from harness.runs.matrix.shards import ShardPart, merge_shards

    if arguments.proofs:
        return None
    named = [run for run in map(MatrixTable(store).find, arguments.runs) if run]
    if named and len(named) < len(arguments.runs):
        raise UnfixError("a matrix run is shown by itself, or with the other shards of its plan")
    if not arguments.runs and not arguments.merge:
        return _find_newest_run(store)
    parts = [ShardPart(run, str(store.file)) for run in named] + _collect_shards(
        store, arguments.merge
    )
    if not parts:
        return None
    run = merge_shards(parts)
    for other in arguments.merge:
        run_lookup.merge_store(store, other)
    return run


def _find_newest_run(store: Store) -> MatrixRun | None:
    """Find the newest matrix run, unless a later run is not part of it."""
    newest = run_lookup.find_newest_run(store)
    runs = MatrixTable(store).list_runs()
    if newest is None or not runs:
        return None
    kind, matrix_run = newest[0], MatrixTable(store).load_whole(runs[-1])
    command = ["unfix", kind.name]
    is_part = any(cell.command[:2] == command for cell in matrix_run.cells)
    return matrix_run if kind is KINDS["matrix"] or is_part else None


def _collect_shards(store: Store, other_stores: list[Path]) -> list[Any]:
    """Collect the shards in the other stores; none if no store has a matrix run."""
    from harness.runs.matrix.shards import ShardPart, select_newest_shards
    from harness.store.database import Store

    opened = []
    for other in other_stores:
        if other.resolve() == store.file.resolve():
            raise UnfixError(f"{other} is this store itself")
        other_store = Store(other, create=False)
        opened.append((str(other), other_store, MatrixTable(other_store).list_runs()))
    parts = []
    if any(runs for _, _, runs in opened):
        for source, other_store, runs in opened:
            parts += [
                ShardPart(MatrixTable(other_store).load_whole(run), source)
                for run in select_newest_shards(runs, source)
            ]
    for _, other_store, _ in opened:
        other_store.close()
    return parts
