"""The stored runs of `unfix zoo`. Each architecture's result is written at once."""

from __future__ import annotations

from typing import ClassVar

from harness.store.run_table import RunTable
from harness.store.zoo.values import ArchitectureResult, ZooRun


class ZooTable(RunTable[ZooRun, ZooRun]):
    kind = "zoo"
    noun = "zoo run"
    item_types: ClassVar = {"architectures": ArchitectureResult}
    listed_type = ZooRun

    def save_result(self, run_id: str, number: int, result: ArchitectureResult) -> None:
        outcome = "absent" if result.absent else "red" if result.failures else "green"
        with self.store.write_transaction():
            self._write_item(
                *(run_id, "architectures", result),
                owner=result.name,
                position=number,
                outcome=outcome,
                seconds=result.seconds,
            )
