"""The mutation runs of a store: each fault's fate is written as it falls."""

from __future__ import annotations

import msgspec

from harness.store.file import as_text
from harness.store.mutate.values import Fated, Mutation
from harness.store.rows import RunTables
from harness.store.writers import me

TABLES = {"mutations": "id", "fates": "run"}


class Mutations(RunTables):
    """What `unfix mutate` leaves behind."""

    def begin_mutation(self, mutation: Mutation) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self._writing():
            self._not_running("mutations", mutation.id, "run")
            self._keep_mutation(mutation, "running")

    def fated(self, mutation: str, number: int, fated: Fated) -> None:
        with self._writing():
            self._put("fates", mutation, fated.fault.id, number, fated.fate.value, as_text(fated))

    def end_mutation(self, mutation: Mutation) -> None:
        with self._writing():
            self._keep_mutation(mutation, mutation.status)

    def _keep_mutation(self, mutation: Mutation, status: str) -> None:
        bare = msgspec.structs.replace(mutation, fates=[])
        self._put("mutations", mutation.id, mutation.started, status, me(), as_text(bare))

    def mutations(self) -> list[Mutation]:
        """Every run without its faults, the oldest first."""
        return self._runs_of("mutations", Mutation)

    def find_mutation(self, name: str) -> Mutation | None:
        """A whole run, by its id or by how its id begins; None if there is none."""
        found = self._named(self.mutations(), name, "run")
        return self.with_fates(found) if found else None

    def with_fates(self, mutation: Mutation) -> Mutation:
        with self._explained():
            mutation.fates = [
                msgspec.json.decode(data, type=Fated)
                for (data,) in self._db.execute(
                    "SELECT data FROM fates WHERE run = ? ORDER BY number", (mutation.id,)
                )
            ]
        return mutation

    def fated_in(self, mutation: str, fault: str) -> Fated:
        """One fault of a run."""
        with self._explained():
            (data,) = self._db.execute(
                "SELECT data FROM fates WHERE run = ? AND fault = ?", (mutation, fault)
            ).fetchone()
        return msgspec.json.decode(data, type=Fated)

    def newest_mutation(self) -> Mutation | None:
        found = self.mutations()
        return self.with_fates(found[-1]) if found else None

    def merge_mutations(self, other: Mutations) -> None:
        self._merge(other, TABLES, self.mutations(), other.mutations())
