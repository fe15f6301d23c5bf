"""The stored runs of `unfix fuzz`. Each save writes the whole run again."""

from __future__ import annotations

from harness.store.fuzz.values import FuzzRun
from harness.store.run_table import RunTable


class FuzzTable(RunTable[FuzzRun, FuzzRun]):
    kind = "fuzz"
    noun = "fuzzing run"
    listed_type = FuzzRun
