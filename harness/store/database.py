"""The store of all runs: one table for each kind, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.errors import UnfixError
from harness.store.bisect.table import BisectTable
from harness.store.eval.table import EvalTable
from harness.store.fuzz.table import FuzzTable
from harness.store.matrix.table import MatrixTable
from harness.store.mutate.table import MutationTable
from harness.store.pr.table import PrTable
from harness.store.prove.table import ProveTable
from harness.store.rehearse.table import RehearsalTable
from harness.store.run_table import RunTable
from harness.store.sqlite_file import LOCK_TIMEOUT, StoreFile
from harness.store.zoo.table import ZooTable


class Store(StoreFile):
    """A store file with a table for each kind of run, named by the kind's command."""

    def __init__(
        self, file: Path | None = None, lock_timeout: float = LOCK_TIMEOUT, create: bool = True
    ) -> None:
        super().__init__(file, lock_timeout, create)
        self.prove = ProveTable(self)
        self.bisect = BisectTable(self)
        self.eval = EvalTable(self)
        self.matrix = MatrixTable(self)
        self.mutate = MutationTable(self)
        self.fuzz = FuzzTable(self)
        self.zoo = ZooTable(self)
        self.pr = PrTable(self)
        self.rehearse = RehearsalTable(self)

    @property
    def tables(self) -> tuple[RunTable[Any, Any], ...]:
        return (
            *(self.prove, self.bisect, self.eval, self.matrix, self.mutate),
            *(self.fuzz, self.zoo, self.pr, self.rehearse),
        )

    def merge(self, other_file: Path) -> list[str]:
        """Copy the runs of another store into this one. Return the ids of its proofs."""
        if other_file.resolve() == self.file.resolve():
            raise UnfixError(f"{other_file} is this store itself")
        other = Store(other_file, create=False)
        ids = {
            table.kind: table.merge(other_table)
            for table, other_table in zip(self.tables, other.tables, strict=True)
        }
        other.close()
        return ids[ProveTable.kind]
