"""The stored runs of `unfix rehearse`. Each deployment's result is written at once."""

from __future__ import annotations

from typing import ClassVar

from harness.store.lane_runs import LaneRunTable
from harness.store.rehearse.values import DeploymentResult, RehearsalRun


class RehearsalTable(LaneRunTable[RehearsalRun]):
    kind = "rehearse"
    noun = "rehearsal"
    item_types: ClassVar = {"deployments": DeploymentResult}
    listed_type = RehearsalRun

    def find_newest_whole(
        self,
        release: str,
        names: list[str],
        code: str | None = None,
        has_thresholds: bool = True,
    ) -> RehearsalRun | None:
        """Find the newest finished run on a release that has these deployments and no toggles.

        With `code`, only one that this code of ours made: what other code found may differ.
        So may the ranks of a run that searched no thresholds.
        """
        runs = [
            run
            for run in self.list_runs()
            if (run.release, run.status, run.toggles) == (release, "finished", [])
            and set(names) <= set(run.planned)
            and code in (None, run.code)
            and run.has_thresholds == has_thresholds
        ]
        return self.load_whole(runs[-1]) if runs else None
