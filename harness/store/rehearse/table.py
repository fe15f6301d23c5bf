"""The stored runs of `unfix rehearse`. Each deployment's result is written at once."""

from __future__ import annotations

from typing import ClassVar

from harness.core.outcomes import RunStatus
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
        """Find the newest run on a release that has results of these deployments and no toggles.

        A run with a deployment that was cut short, as by a machine under load, is none. With
        `code`, only one that this code of ours made: what other code found may differ. So may the
        ranks of a run that searched no thresholds.
        """
        for run in reversed(self.list_runs()):
            if (run.release, run.status, run.toggles) != (release, RunStatus.FINISHED, []):
                continue
            if not set(names) <= set(run.planned) or code not in (None, run.code):
                continue
            if run.has_thresholds != has_thresholds:
                continue
            whole = self.load_whole(run)
            rehearsed = {one.name for one in whole.deployments}
            if set(run.planned) <= rehearsed and not whole.has_cut_deployment:
                return whole
        return None
