"""The store: the runs of every kind, in one file.

Nothing is kept in memory that is not in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.errors import UnfixError
from harness.store.bisect.table import Searches
from harness.store.eval.table import Evaluations
from harness.store.file import PATIENCE, StoreFile
from harness.store.fuzz.table import Fuzzings
from harness.store.history import Glances
from harness.store.matrix.table import Matrices
from harness.store.mutate.table import Mutations
from harness.store.prove.table import Proofs
from harness.store.table import Table


class Store(StoreFile):
    """One table a kind of run, by the word of its command; and what a history reads of them all."""

    def __init__(
        self, file: Path | None = None, patience: float = PATIENCE, make: bool = True
    ) -> None:
        super().__init__(file, patience, make)
        self.prove = Proofs(self)
        self.bisect = Searches(self)
        self.eval = Evaluations(self)
        self.matrix = Matrices(self)
        self.mutate = Mutations(self)
        self.fuzz = Fuzzings(self)
        self.history = Glances(self)

    def table(self, kind: str) -> Table[Any, Any]:
        found: Table[Any, Any] = getattr(self, kind)
        return found

    def merge(self, other: Path) -> list[str]:
        """Take in the runs of another file; gives the ids of the proofs that it holds."""
        if other.resolve() == self.file.resolve():
            raise UnfixError(f"{other} is this store itself")
        there = Store(other, make=False)
        proofs = self.prove.merge(there.prove)
        for kind in ("bisect", "eval", "matrix", "mutate", "fuzz"):
            self.table(kind).merge(there.table(kind))
        there.close()
        return proofs
