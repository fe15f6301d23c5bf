"""The mutation runs of a store: each fault's fate is written as it falls."""

from __future__ import annotations

import msgspec

from harness.errors import UnfixError
from harness.store.file import StoreFile, as_text
from harness.store.mutations import Fated, Mutation
from harness.store.writers import alive, me


class Mutations(StoreFile):
    """What `unfix mutate` leaves behind."""

    def begin_mutation(self, mutation: Mutation) -> None:
        """A new run, or an old one that goes on; one that somebody else runs is refused."""
        with self._writing():
            row = self._db.execute(
                "SELECT status, process FROM mutations WHERE id = ?", (mutation.id,)
            ).fetchone()
            if row and row[0] == "running" and alive(row[1]):
                raise UnfixError(f"run {mutation.id} is still going on")
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
        with self._explained():
            rows = self._db.execute(
                "SELECT status, process, data FROM mutations ORDER BY started, id"
            ).fetchall()
            found = []
            for status, process, data in rows:
                mutation = msgspec.json.decode(data, type=Mutation)
                gone = status == "running" and not alive(process)
                mutation.status = "stopped" if gone else status
                found.append(mutation)
        return found

    def find_mutation(self, name: str) -> Mutation | None:
        """A whole run, by its id or by how its id begins; None if there is none."""
        found = [mutation for mutation in self.mutations() if mutation.id.startswith(name)]
        if not found:
            return None
        if len(found) > 1:
            raise UnfixError(f"{self.file} holds more than one run {name}")
        return self.with_fates(found[0])

    def with_fates(self, mutation: Mutation) -> Mutation:
        with self._explained():
            mutation.fates = [
                msgspec.json.decode(data, type=Fated)
                for (data,) in self._db.execute(
                    "SELECT data FROM fates WHERE run = ? ORDER BY number", (mutation.id,)
                )
            ]
        return mutation

    def newest_mutation(self) -> Mutation | None:
        found = self.mutations()
        return self.with_fates(found[-1]) if found else None

    def merge_mutations(self, other: Mutations) -> None:
        """Take in those of another file that this one lacks, or has only a part of."""
        here = {mutation.id: mutation.status for mutation in self.mutations()}
        for mutation in other.mutations():
            if here.get(mutation.id) != "finished":
                with self._writing():
                    for table, key in (("mutations", "id"), ("fates", "run")):
                        self._db.execute(f"DELETE FROM {table} WHERE {key} = ?", (mutation.id,))
                        rows = f"SELECT * FROM {table} WHERE {key} = ?"
                        for row in other._db.execute(rows, (mutation.id,)):
                            self._put(table, *row)
