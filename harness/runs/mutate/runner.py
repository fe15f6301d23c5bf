"""A mutation run: reach first, then a fork for each fault; each fate is kept as it falls."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from harness.core import machine, paths
from harness.runs.mutate import fault_outcomes, line_coverage
from harness.runs.mutate.guard_order import GuardOrder
from harness.runs.mutate.kill_confirmation import KillConfirmer
from harness.runs.mutate.line_coverage import CoverageRecord, GuardCoverage
from harness.runs.mutate.messages import FaultAttemptReport, MutationWorkerReady
from harness.runs.mutate.request import MutationPlan
from harness.runs.mutate.scheduler import (
    MutationScheduler,
    PendingAttempt,
)
from harness.store.mutate.table import MutationTable
from harness.store.mutate.values import FaultOutcome, FaultResult, GuardFacts, MutationRun
from harness.store.prove.values import SideOutcome, SideResult
from harness.workers.supervisor import NO_RESULT_HEADLINE
from harness.workers.worker_process import ENGINE_TEST_FILE

TRACED_GUARD_SECONDS = 600.0  # seconds for one without a fault, traced
ENGINE_GUARDS_EXCLUDED = (
    f"suites/accuracy/{ENGINE_TEST_FILE}: its servers are other processes, without the fault"
)


class MutationListener:
    """Who wants to know how a run goes; this one does not."""

    def report_start(self, release: str) -> None: ...

    def report_ready(self, ready: MutationWorkerReady, known: int) -> None: ...

    def report_coverage(self, coverage: GuardCoverage, done: int, of: int) -> None: ...

    def report_result(self, mutation: MutationRun, result: FaultResult) -> None: ...

    def report_problem(self, text: str) -> None: ...


@dataclass
class FaultCase:
    """A fault that is being looked at, by some guards or by all that are left."""

    result: FaultResult
    remaining_guards: list[GuardCoverage]
    example_factor: int = 1
    passing_guards: list[str] = field(
        default_factory=list
    )  # guards that ran its code and noticed nothing
    conflicts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.guard_count = len(self.remaining_guards)


class MutationRunner:
    """One run, from its worker's start to its end."""

    def __init__(
        self,
        plan: MutationPlan,
        mutation: MutationRun,
        store: MutationTable,
        listener: MutationListener,
        plan_from_coverage: Callable[[CoverageRecord], MutationPlan] | None = None,
    ) -> None:
        self.plan = plan
        self.plan_from_coverage = (
            plan_from_coverage  # gives the faults, once it is known what guards run
        )
        self.mutation = mutation
        self.store = store
        self.listener = listener
        self.folder = paths.state_folder() / "runs" / mutation.id
        self.scheduler = MutationScheduler(plan, self.folder, self._report_problem)
        self.coverage = CoverageRecord("")
        self.guard_order = GuardOrder()
        self.kill_confirmer = KillConfirmer(
            self.scheduler, self._report_problem, self._record_passes
        )
        self._started = time.monotonic() - mutation.seconds

    def execute(self) -> None:
        """Until every fault has its fate, or Ctrl-C: what is done by then is kept."""
        self.mutation.status = "stopped"
        self.store.begin(self.mutation)
        try:
            self.listener.report_start(self.plan.target.name)
            guards = self._start_worker()
            self._measure_coverage(guards)
            if self.plan_from_coverage is not None:
                self.plan = self.plan_from_coverage(self.coverage)
                self.scheduler.import_modules(sorted({fault.module for fault in self.plan.faults}))
            self.scheduler.run_attempts(self._iterate_attempts())
            self.mutation.status = "finished"
        finally:
            self.scheduler.end()
            self.mutation.seconds = time.monotonic() - self._started
            self.store.save(self.mutation)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _report_problem(self, text: str) -> None:
        self.mutation.recorded_problems.append(text)
        self.listener.report_problem(text)

    def _start_worker(self) -> list[str]:
        said = self.scheduler.start()
        facts = machine.collect_machine_facts(str(self.plan.target.python))
        self.mutation.versions = facts.pop("versions") | said.versions
        self.mutation.machine = facts
        self.mutation.seconds_to_start = said.seconds
        for problem in said.problems:
            self._report_problem(problem)
        asked = self.plan
        key = line_coverage.compute_coverage_key(asked.target, asked.profile, asked.toggle_folders)
        self.coverage_file = line_coverage.get_coverage_file(
            asked.target.name, asked.profile, asked.pytest_arguments
        )
        self.coverage = line_coverage.load_coverage(self.coverage_file, key, asked.working_folder)
        modules = {fault.module for fault in asked.faults}
        self.scheduler.import_modules(sorted({*modules, *self.coverage.imported}))
        self.listener.report_ready(
            said, sum(guard in self.coverage.guards for guard in said.guards)
        )
        return said.guards

    # Reach

    def _measure_coverage(self, guards: list[str]) -> None:
        """Run every guard once with nothing changed, unless that is known."""
        begun = time.monotonic()
        unknown = [guard for guard in guards if guard not in self.coverage.guards]
        told = partial(self._record_coverage, total=len(guards))
        self.scheduler.run_attempts(
            PendingAttempt([(guard, TRACED_GUARD_SECONDS)], told, trace=True) for guard in unknown
        )
        if unknown:
            self.scheduler.import_modules(self.coverage.imported)
        self.mutation.seconds_to_reach = time.monotonic() - begun
        known = [one for name, one in self.coverage.guards.items() if name in set(guards)]
        for one in known:
            if one.outcome in (SideOutcome.NA, SideOutcome.SKIPPED):
                self.mutation.left_out.append(f"{one.guard}: {one.headline}")
            elif one.outcome is not SideOutcome.PASSED:
                self._report_problem(f"{one.guard} fails without any fault: {one.headline}")
        self.mutation.left_out.append(ENGINE_GUARDS_EXCLUDED)
        self.mutation.guards = [
            GuardFacts(one.guard, one.outcome.value, one.seconds, one.headline) for one in known
        ]
        passing = [one for one in known if one.outcome is SideOutcome.PASSED]
        self.coverage.guards = {one.guard: one for one in passing}

    def _record_coverage(
        self, report: FaultAttemptReport, guard_names: list[str], total: int
    ) -> None:
        ended_well = report.results and report.fork_side.outcome is SideOutcome.PASSED
        side = report.results[0].side if ended_well else report.fork_side
        traced = report.trace
        found = self.coverage.guards[guard_names[0]] = GuardCoverage(
            guard=guard_names[0],
            outcome=side.outcome,
            seconds=side.seconds,
            headline=side.headline,
            suite=line_coverage.digest_suite(guard_names[0], self.plan.working_folder),
            lines=traced.lines if traced else {},
            imported=traced.imported if traced else [],
        )
        if found.outcome is SideOutcome.PASSED:
            self.kill_confirmer.record_pass(found.guard)
        line_coverage.save_coverage(self.coverage_file, self.coverage)
        self.listener.report_coverage(found, len(self.coverage.guards), total)

    # Faults

    def _iterate_attempts(self) -> Iterator[PendingAttempt]:
        """A first look at each that is reached; taken one by one, so that the order learns."""
        for fated in self.mutation.fates:  # of before the run was stopped
            if fated.by:
                self.guard_order.record_kill(fated.fault, fated.by)
            elif fated.passed and not fated.longer:
                self._defer_longer_attempt(fated)
        done = {fated.fault.id for fated in self.mutation.fates}
        # Those said to be equal take longest: every guard of theirs runs to its end.
        last = sorted(self.plan.faults, key=lambda fault: fault.id in self.plan.equivalents)
        for fault in last:
            if fault.id in done:
                continue
            source = self.plan.target.sources.read(fault.module)
            assert source is not None
            fated = FaultResult(
                fault,
                FaultOutcome.UNREACHED,
                family=self.plan.families.get(fault.target, ""),
                diff=fault_outcomes.format_fault_diff(fault, source.text),
            )
            reaching = line_coverage.find_reaching_guards(fault, source.text, self.coverage)
            if reaching and fault.id in self.plan.equivalents and not self.plan.run_equivalents:
                fated.fate, fated.why = FaultOutcome.EQUIVALENT, self.plan.equivalents[fault.id]
                self._store_result(fated)
            elif reaching:
                yield self._make_attempt(
                    FaultCase(fated, self.guard_order.sort_guards(fault, reaching))
                )
            else:
                fated.why = "no guard runs its lines"
                self._store_result(fated)

    def _make_attempt(self, case: FaultCase) -> PendingAttempt:
        case.remaining_guards = [
            one
            for one in case.remaining_guards
            if one.guard not in self.kill_confirmer.failing_guards
        ]
        limits = [
            (one.guard, self.guard_order.compute_limit(one, case.example_factor))
            for one in case.remaining_guards
        ]
        return PendingAttempt(
            limits, partial(self._handle_report, case), case.result.fault, case.example_factor
        )

    def _handle_report(
        self, case: FaultCase, report: FaultAttemptReport, guard_names: list[str]
    ) -> None:
        fated = case.result
        fated.seconds += report.fork_side.seconds + report.fork_side.overhead
        fated.ran += report.reach
        if case.example_factor == 1:
            self._record_passes(report, guard_names)
        case.passing_guards += fault_outcomes.list_passing_guards(report.results, guard_names)
        case.conflicts += [ran.conflict for ran in report.results if ran.conflict]
        found = fault_outcomes.find_killing_guard(report, guard_names)
        if report.not_live_reason:
            fated.fate, fated.why = FaultOutcome.NOT_LIVE, report.not_live_reason
            self._finish_case(case)
        elif found is None:
            self._handle_survival(case)
        elif found[1].headline == NO_RESULT_HEADLINE:
            fated.why = f"{found[0]}: {NO_RESULT_HEADLINE}"
            self._report_problem(f"{fated.fault.id}: {fated.why}: {found[1].detail}")
            self._finish_case(case)
        else:
            asked = guard_names.index(found[0]) + 1
            limits = [
                (one.guard, self.guard_order.compute_limit(one, case.example_factor))
                for one in case.remaining_guards
            ]
            case.remaining_guards = case.remaining_guards[asked:]
            told = partial(self._handle_confirmation, case, found[0])
            self.kill_confirmer.confirm_kill(
                fated.fault, limits[:asked], case.example_factor, found[1], told
            )

    def _handle_confirmation(self, case: FaultCase, guard: str, side: SideResult | None) -> None:
        """A guard noticed, or it was not the fault: then those behind it are asked."""
        if side is not None:
            fault_outcomes.record_kill(case.result, guard, side)
            self.guard_order.record_kill(case.result.fault, guard)
            self._finish_case(case)
        elif case.remaining_guards:
            self.scheduler.retries.append(self._make_attempt(case))
        else:
            self._handle_survival(case)

    def _handle_survival(self, case: FaultCase) -> None:
        fated = case.result
        if fated.ran:
            fated.fate = FaultOutcome.SURVIVED
            fated.passed = case.passing_guards if case.example_factor == 1 else fated.passed
            if case.example_factor == 1:
                self._defer_longer_attempt(fated)
        else:
            fated.why = fault_outcomes.describe_unreached(case.conflicts, case.guard_count)
        self._finish_case(case)

    def _record_passes(self, report: FaultAttemptReport, guard_names: list[str]) -> None:
        """Guards that noticed nothing, without their lines being recorded: so long they take."""
        for name, ran in zip(guard_names, report.results, strict=False):
            if ran.side.outcome is SideOutcome.PASSED and not ran.conflict:
                self.guard_order.record_pass(name, ran.side.seconds)

    def _defer_longer_attempt(self, result: FaultResult) -> None:
        """Once more, when each other fault has been looked at."""
        known = self.coverage.guards
        again = [known[name] for name in result.passed if name in known]
        said_equal = result.fault.id in self.plan.equivalents  # more examples would show no more
        if self.plan.example_factor > 1 and again and not said_equal:
            self.scheduler.deferred.append(
                self._make_attempt(FaultCase(result, again, self.plan.example_factor))
            )

    def _finish_case(self, case: FaultCase) -> None:
        case.result.longer = case.example_factor > 1
        self._store_result(case.result)

    def _store_result(self, result: FaultResult) -> None:
        """What is known of a fault, for the first or the second time."""
        equal = self.plan.equivalents.get(result.fault.id)
        if equal is not None and result.fate in (FaultOutcome.SURVIVED, FaultOutcome.KILLED):
            result.why = equal
            result.fate = (
                FaultOutcome.EQUIVALENT if result.fate is FaultOutcome.SURVIVED else result.fate
            )
        if not result.longer:
            self.mutation.fates.append(result)
        number = next(n for n, one in enumerate(self.mutation.fates, 1) if one is result)
        self.store.save_result(self.mutation.id, number, result)
        self.listener.report_result(self.mutation, result)
