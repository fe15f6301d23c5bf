"""Records the lines that guards run on an unchanged release; what is on disk is not run again."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from harness.core import paths
from harness.core.outcomes import Outcome
from harness.runs.mutate import line_coverage
from harness.runs.mutate.attempt_pool import AttemptPool, PendingAttempt
from harness.runs.mutate.line_coverage import CoverageRecord, GuardCoverage
from harness.runs.mutate.listener import MutationListener
from harness.runs.mutate.messages import FaultAttemptReport
from harness.runs.mutate.request import MutationPlan

TRACED_GUARD_SECONDS = 600.0  # the limit of a traced guard


class CoverageRecorder:
    """The coverage of the guards that a started worker has collected."""

    def __init__(
        self,
        plan: MutationPlan,
        pool: AttemptPool,
        listener: MutationListener,
        guards: list[str],
        on_pass: Callable[[str], None] = lambda guard: None,
    ) -> None:
        self.plan, self.pool, self.listener = plan, pool, listener
        self.guards, self._on_pass = guards, on_pass
        self._file, self.coverage = _load_coverage(plan)
        self._count = 0  # the guards that are recorded once this call has ended

    @property
    def unknown_guards(self) -> list[str]:
        return [guard for guard in self.guards if guard not in self.coverage.guards]

    def record_unknown_guards(self, suites: Collection[str] = ()) -> None:
        """Run each guard once on the unchanged release, unless its lines are recorded.

        With the names of suites, the guards of the others wait for another call.
        """
        chosen = [
            guard
            for guard in self.unknown_guards
            if not suites or Path(guard.partition("::")[0]).parent.name in suites
        ]
        self._count = len(self.coverage.guards) + len(chosen)
        self.pool.run_attempts(
            PendingAttempt([(guard, TRACED_GUARD_SECONDS)], self._record, trace=True)
            for guard in chosen
        )

    def list_recorded(self) -> list[GuardCoverage]:
        known = self.coverage.guards
        return [known[guard] for guard in self.guards if guard in known]

    def _record(self, report: FaultAttemptReport, guard_names: list[str]) -> None:
        ended_well = report.results and report.fork_side.outcome is Outcome.PASSED
        side = report.results[0].side if ended_well else report.fork_side
        coverage = self.coverage.guards[guard_names[0]] = GuardCoverage(
            guard=guard_names[0],
            outcome=side.outcome,
            seconds=side.seconds,
            headline=side.headline,
            example=side.example,
            suite=line_coverage.digest_suite(guard_names[0], self.plan.working_folder),
            lines=report.trace.lines if report.trace else {},
            imported=report.trace.imported if report.trace else [],
            stand_ins=side.stand_ins,
            observed=side.observed,
        )
        if coverage.outcome is Outcome.PASSED:
            self._on_pass(coverage.guard)
        if coverage.imported:  # what one fork imported, the next ones find imported
            self.pool.import_modules(coverage.imported)
        line_coverage.save_coverage(self._file, self.coverage)
        done = len(self.coverage.guards)
        self.listener.report_coverage(coverage, done, self._count)


def record_release_coverage(
    plan: MutationPlan,
    listener: MutationListener,
    report_problem: Callable[[str], None],
    repeats_failures: bool = False,
) -> list[GuardCoverage]:
    """Return the coverage of a release's guards; start a worker only if one is not on disk.

    With `repeats_failures`, a guard that failed runs again.
    """
    file, coverage = _load_coverage(plan, with_failures=not repeats_failures)
    suites = line_coverage.digest_suites(plan.working_folder)
    if coverage.suites == suites and set(coverage.collected) <= coverage.guards.keys():
        return [coverage.guards[guard] for guard in coverage.collected]
    folder = paths.state_folder() / "runs" / f"coverage-{secrets.token_hex(4)}"
    pool = AttemptPool(plan, folder, report_problem)
    try:
        listener.report_start(plan.target.name)
        ready = pool.start()
        recorder = CoverageRecorder(plan, pool, listener, ready.guards)
        pool.import_modules(recorder.coverage.imported)
        listener.report_ready(ready, len(ready.guards) - len(recorder.unknown_guards))
        recorder.record_unknown_guards()
    finally:
        pool.end_workers()
        shutil.rmtree(folder, ignore_errors=True)
    recorder.coverage.collected, recorder.coverage.suites = ready.guards, suites
    line_coverage.save_coverage(file, recorder.coverage)
    return recorder.list_recorded()


def _load_coverage(plan: MutationPlan, with_failures: bool = False) -> tuple[Path, CoverageRecord]:
    """Return the file of a plan's coverage, and what is valid of it."""
    key = line_coverage.compute_coverage_key(plan.target, plan.profile, plan.toggle_folders)
    file = line_coverage.get_coverage_file(plan.target.name, plan.profile, plan.pytest_arguments)
    return file, line_coverage.load_coverage(file, key, plan.working_folder, with_failures)
