"""The stored runs of `unfix mutate`. Each fault's result is written at once."""

from __future__ import annotations

from typing import ClassVar

from harness.store.mutate.values import FaultResult, MutationRun
from harness.store.run_table import RunTable


class MutationTable(RunTable[MutationRun, MutationRun]):
    kind = "mutate"
    noun = "mutation run"
    item_types: ClassVar = {"fates": FaultResult}
    listed_type = MutationRun

    def save_result(self, run_id: str, number: int, result: FaultResult) -> None:
        self.save_item(
            *(run_id, "fates", result),
            owner=result.fault.id,
            position=number,
            outcome=result.fate.value,
            seconds=result.seconds,
        )

    def load_result(self, run_id: str, fault_id: str) -> FaultResult:
        ((_, result),) = self.load_owned_items(run_id, "fates", FaultResult, fault_id)
        return result
