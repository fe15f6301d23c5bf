"""The fuzzing runs of a store: each is written whole, again and again as it grows."""

from __future__ import annotations

from harness.store.file import as_text
from harness.store.fuzz.values import FuzzRun
from harness.store.rows import RunTables
from harness.store.writers import me


class Fuzzings(RunTables):
    """What `unfix fuzz` leaves behind, its examples and files apart."""

    def save_fuzzing(self, run: FuzzRun) -> None:
        with self._writing():
            self._put("fuzzings", run.id, run.started, run.status, me(), as_text(run))

    def fuzzings(self) -> list[FuzzRun]:
        """Every run, the oldest first."""
        return self._runs_of("fuzzings", FuzzRun)

    def merge_fuzzings(self, other: Fuzzings) -> None:
        self._merge(other, {"fuzzings": "id"}, self.fuzzings(), other.fuzzings())
