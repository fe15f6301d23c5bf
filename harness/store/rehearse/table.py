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

    def find_newest_whole(self, release: str, names: list[str]) -> RehearsalRun | None:
        """Find the newest finished run on a release that has these deployments and no toggles."""
        runs = [
            run
            for run in self.list_runs()
            if (run.release, run.status, run.toggles) == (release, "finished", [])
            and set(names) <= set(run.planned)
        ]
        return self.load_whole(runs[-1]) if runs else None

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
