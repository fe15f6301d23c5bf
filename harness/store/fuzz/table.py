"""The fuzzing runs of a store: each is written whole, again and again as it grows."""

from __future__ import annotations

from typing import ClassVar

from harness.store.fuzz.values import FuzzRun
from harness.store.run_table import RunTable
from harness.store.sqlite_file import encode_json
from harness.store.writer_process import identify_this_process


class FuzzTable(RunTable[FuzzRun, FuzzRun]):
    """What `unfix fuzz` leaves behind, its examples and files apart."""

    noun = "fuzzing run"
    tables: ClassVar = {"fuzzings": "id"}
    listed_type = FuzzRun

    def save(self, run: FuzzRun) -> None:
        with self.store.write_transaction():
            self.store.replace_row(
                "fuzzings",
                run.id,
                run.started,
                run.status,
                identify_this_process(),
                encode_json(run),
            )

    def load_whole(self, run: FuzzRun) -> FuzzRun:
        return run
