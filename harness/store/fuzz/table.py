"""The stored runs of `unfix fuzz`: each is saved again and again as it grows."""

from __future__ import annotations

from harness.store.fuzz.values import FuzzRun
from harness.store.run_table import RunTable


class FuzzTable(RunTable[FuzzRun, FuzzRun]):
    kind = "fuzz"
    noun = "fuzzing run"
    listed_type = FuzzRun
