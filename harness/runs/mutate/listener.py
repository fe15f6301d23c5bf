"""The listener of a mutation run."""

from __future__ import annotations

from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.mutate.messages import MutationWorkerReady
from harness.store.mutate.values import FaultResult, MutationRun


class MutationListener:
    """A listener that ignores the progress of a run; a subclass shows it."""

    def report_start(self, release: str) -> None: ...

    def report_ready(self, ready: MutationWorkerReady, recorded_guards: int) -> None: ...

    def report_coverage(
        self, coverage: GuardCoverage, done_count: int, guard_count: int
    ) -> None: ...

    def report_own_suites(self, decided: int, fault_count: int) -> None: ...

    def report_result(self, mutation: MutationRun, result: FaultResult) -> None: ...

    def report_problem(self, text: str) -> None: ...
