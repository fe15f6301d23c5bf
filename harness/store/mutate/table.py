"""The mutation runs of a store: each fault's fate is written as it falls."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from harness.store.file import as_text
from harness.store.mutate.values import Fated, Mutation
from harness.store.table import Table
from harness.store.writers import me


class Mutations(Table[Mutation, Mutation]):
    """What `unfix mutate` leaves behind."""

    noun = "mutation run"
    tables: ClassVar = {"mutations": "id", "fates": "run"}
    kind = Mutation

    def begin(self, mutation: Mutation) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self.store.writing():
            self._not_running(mutation.id)
            self._keep(mutation, "running")

    def fated(self, mutation: str, number: int, fated: Fated) -> None:
        with self.store.writing():
            self.store.put(
                "fates", mutation, fated.fault.id, number, fated.fate.value, as_text(fated)
            )

    def end(self, mutation: Mutation) -> None:
        with self.store.writing():
            self._keep(mutation, mutation.status)

    def _keep(self, mutation: Mutation, status: str) -> None:
        bare = msgspec.structs.replace(mutation, fates=[])
        self.store.put("mutations", mutation.id, mutation.started, status, me(), as_text(bare))

    def whole(self, run: Mutation) -> Mutation:
        query = "SELECT data FROM fates WHERE run = ? ORDER BY number"
        return msgspec.structs.replace(run, fates=self._decoded(Fated, query, [run.id]))

    def fated_in(self, mutation: str, fault: str) -> Fated:
        """One fault of a run."""
        query = "SELECT data FROM fates WHERE run = ? AND fault = ?"
        (found,) = self._decoded(Fated, query, [mutation, fault])
        return found  # type: ignore[no-any-return]
