"""The store: the runs of every kind, in one file.

Nothing is kept in memory that is not in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.errors import UnfixError
from harness.store.bisect.table import BisectTable
from harness.store.eval.table import EvalTable
from harness.store.fuzz.table import FuzzTable
from harness.store.matrix.table import MatrixTable
from harness.store.mutate.table import MutationTable
from harness.store.night_reader import NightReader
from harness.store.prove.table import ProveTable
from harness.store.run_table import RunTable
from harness.store.sqlite_file import LOCK_TIMEOUT, StoreFile


class Store(StoreFile):
    """One table a kind of run, by the word of its command; and what a history reads of them all."""

    def __init__(
        self, file: Path | None = None, patience: float = LOCK_TIMEOUT, create: bool = True
    ) -> None:
        super().__init__(file, patience, create)
        self.prove = ProveTable(self)
        self.bisect = BisectTable(self)
        self.eval = EvalTable(self)
        self.matrix = MatrixTable(self)
        self.mutate = MutationTable(self)
        self.fuzz = FuzzTable(self)
        self.history = NightReader(self)

    def table(self, kind: str) -> RunTable[Any, Any]:
        found: RunTable[Any, Any] = getattr(self, kind)
        return found

    def merge(self, other: Path) -> list[str]:
        """Take in the runs of another file; gives the ids of the proofs that it holds."""
        if other.resolve() == self.file.resolve():
            raise UnfixError(f"{other} is this store itself")
        there = Store(other, create=False)
        proofs = self.prove.merge(there.prove)
        for kind in ("bisect", "eval", "matrix", "mutate", "fuzz"):
            self.table(kind).merge(there.table(kind))
        there.close()
        return proofs
