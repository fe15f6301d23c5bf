"""The stored runs of `unfix pr`. A run is written whole whenever a part of it ends."""

from __future__ import annotations

from harness.store.pr.values import PrRun
from harness.store.run_table import RunTable


class PrTable(RunTable[PrRun, PrRun]):
    kind = "pr"
    noun = "review"
    listed_type = PrRun
