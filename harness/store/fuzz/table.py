"""The fuzzing runs of a store: each is written whole, again and again as it grows."""

from __future__ import annotations

from typing import ClassVar

from harness.store.file import as_text
from harness.store.fuzz.values import FuzzRun
from harness.store.table import Table
from harness.store.writers import me


class Fuzzings(Table[FuzzRun, FuzzRun]):
    """What `unfix fuzz` leaves behind, its examples and files apart."""

    noun = "fuzzing run"
    tables: ClassVar = {"fuzzings": "id"}
    kind = FuzzRun

    def save(self, run: FuzzRun) -> None:
        with self.store.writing():
            self.store.put("fuzzings", run.id, run.started, run.status, me(), as_text(run))

    def whole(self, run: FuzzRun) -> FuzzRun:
        return run
