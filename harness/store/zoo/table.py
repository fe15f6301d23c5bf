"""The stored runs of `unfix zoo`. Each architecture's result is written at once."""

from __future__ import annotations

from typing import ClassVar

from harness.store.lane_runs import LaneRunTable
from harness.store.zoo.values import ArchitectureResult, ZooRun


class ZooTable(LaneRunTable[ZooRun]):
    kind = "zoo"
    noun = "zoo run"
    item_types: ClassVar = {"architectures": ArchitectureResult}
    listed_type = ZooRun
