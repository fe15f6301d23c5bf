"""The stored runs of `unfix rehearse`. Each deployment's result is written at once."""

from __future__ import annotations

from typing import ClassVar

from harness.store.rehearse.values import DeploymentResult, RehearsalRun
from harness.store.run_table import RunTable


class RehearsalTable(RunTable[RehearsalRun, RehearsalRun]):
    kind = "rehearse"
    noun = "rehearsal"
    item_types: ClassVar = {"deployments": DeploymentResult}
    listed_type = RehearsalRun

    def save_result(self, run_id: str, number: int, result: DeploymentResult) -> None:
        outcome = "refused" if result.refusal else "red" if result.reachable else "green"
        with self.store.write_transaction():
            self._write_item(
                *(run_id, "deployments", result),
                owner=result.name,
                position=number,
                outcome=outcome,
                seconds=result.seconds,
            )
