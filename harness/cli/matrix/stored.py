"""Which stored matrix run `unfix report` was asked for: one, or the shards of one, joined."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UnfixError

if TYPE_CHECKING:
    from harness.store.database import Store
    from harness.store.matrix.values import MatrixRun


def asked_for(store: Store, arguments: argparse.Namespace) -> MatrixRun | None:
    """The matrix run that `report` was asked for, shards joined; None: it was not for one."""
    from harness.matrix.joining import Part, joined

    if arguments.proofs:
        return None
    named = [run for run in map(store.matrix.find, arguments.runs) if run]
    if named and len(named) < len(arguments.runs):
        raise UnfixError("a matrix run is shown by itself, or with the other shards of its plan")
    if not arguments.runs and not arguments.merge:
        return _newest(store)
    parts = [Part(run, str(store.file)) for run in named] + _shards(store, arguments.merge)
    if not parts:
        return None
    whole = joined(parts)
    for other in arguments.merge:
        store.merge(other)
    return whole


def _newest(store: Store) -> MatrixRun | None:
    """The newest matrix run, if nothing was proven since it ended: its cells prove, too."""
    runs = store.matrix.all()
    if not runs:
        return None
    proofs = store.prove.all()
    newest = store.matrix.whole(runs[-1])
    if proofs and proofs[-1].started > runs[-1].started and not _proves(newest):
        return None
    return newest


def _proves(run: MatrixRun) -> bool:
    return any(cell.command[:2] == ["unfix", "prove"] for cell in run.cells)


def _shards(store: Store, others: list[Path]) -> list[Any]:
    """What the other stores hold of a matrix; nothing if none of them holds any."""
    from harness.matrix.joining import Part, newest_shards
    from harness.store.database import Store

    held = []
    for other in others:
        if other.resolve() == store.file.resolve():
            raise UnfixError(f"{other} is this store itself")
        there = Store(other, make=False)
        held.append((str(other), there, there.matrix.all()))
    parts = []
    if any(runs for _, _, runs in held):
        for source, there, runs in held:
            parts += [Part(there.matrix.whole(run), source) for run in newest_shards(runs, source)]
    for _, there, _ in held:
        there.close()
    return parts
