"""A mutation run: it records the lines that guards run, then runs the guards of each fault.

A fault is run by the guards that ran a line of its statement, in the order that kills soonest,
until one fails; a kill counts once it is confirmed (`kill_confirmation`). Each result is stored at
once. Example: two of nine guards reach a fault. The first passes, the second fails; it fails again
with the fault alone and passes without it, so the fault is killed by the second. Had
both passed, the fault would survive, and both would run again at the end with more examples.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from harness.core import machine, paths
from harness.core.added_counts import add_counts
from harness.core.outcomes import Outcome, Verdict
from harness.runs.mutate import fault_outcomes, line_coverage
from harness.runs.mutate.attempt_pool import AttemptPool, PendingAttempt
from harness.runs.mutate.coverage_recorder import CoverageRecorder
from harness.runs.mutate.fault_outcomes import FATES_WITHOUT_EVIDENCE
from harness.runs.mutate.guard_order import GuardOrder
from harness.runs.mutate.kill_confirmation import FailedAttempt, KillConfirmer
from harness.runs.mutate.line_coverage import CoverageRecord, GuardCoverage
from harness.runs.mutate.listener import MutationListener
from harness.runs.mutate.messages import FaultAttemptReport
from harness.runs.mutate.request import MutationPlan
from harness.store.mutate.faults import MutationFault
from harness.store.mutate.table import MutationTable
from harness.store.mutate.values import REACHED_OUTCOMES, FaultResult, GuardFacts, MutationRun
from harness.store.prove.values import SideResult
from harness.workers.supervisor import NO_RESULT_HEADLINE
from harness.workers.worker_process import ENGINE_TEST_FILE

ENGINE_GUARDS_EXCLUDED = (
    f"suites/accuracy/{ENGINE_TEST_FILE}: its servers are other processes, without the fault"
)


@dataclass
class FaultCase:
    """A fault under test, with the guards that have not run yet."""

    result: FaultResult
    remaining_guards: list[GuardCoverage]
    example_factor: int = 1
    passing_guards: list[str] = field(default_factory=list)  # guards that passed and ran its code
    conflicts: list[str] = field(default_factory=list)
    has_hung: bool = False  # under one guard
    unreached_reason: str = ""
    tried: set[str] = field(default_factory=set)  # guards that it was given so far

    def __post_init__(self) -> None:
        self.tried |= {guard.guard for guard in self.remaining_guards}


class MutationRunner:
    """One run, from the start of its worker to its end."""

    def __init__(
        self,
        plan: MutationPlan,
        mutation: MutationRun,
        store: MutationTable,
        listener: MutationListener,
        plan_from_coverage: Callable[[CoverageRecord], MutationPlan] | None = None,
    ) -> None:
        self.plan = plan
        self.plan_from_coverage = plan_from_coverage  # adds the faults that depend on coverage
        self.mutation = mutation
        self.store = store
        self.listener = listener
        self.folder = paths.state_folder() / "runs" / mutation.id
        self.pool = AttemptPool(plan, self.folder, self._report_problem)
        self.coverage = CoverageRecord("")
        self.guard_order = GuardOrder()
        self.kill_confirmer = KillConfirmer(self.pool, self._report_problem, self._record_passes)
        self._has_all_guards = True  # else those of the faults' own suites alone
        self._undecided: dict[str, FaultCase] = {}  # by fault

    def execute(self) -> None:
        """Run until every fault has a result, or until Ctrl-C. Each result is stored either way."""
        with self.store.record_run(self.mutation), contextlib.ExitStack() as ending:
            ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
            ending.callback(self.pool.end_workers)
            self.listener.report_start(self.plan.target.name)
            self._start_worker()
            self._run_own_suites()
            self._measure_coverage()
            if self.plan_from_coverage is not None:
                self.plan = self.plan_from_coverage(self.coverage)
                self.pool.import_modules(sorted({fault.module for fault in self.plan.faults}))
            self.pool.run_attempts(self._iterate_attempts())

    def _report_problem(self, text: str) -> None:
        self.mutation.recorded_problems.append(text)
        self.listener.report_problem(text)

    def _start_worker(self) -> None:
        ready = self.pool.start()
        facts = machine.collect_machine_facts(str(self.plan.target.python))
        if (target := self.plan.target).requested_as == "current":  # which may be any checkout
            facts["sources"] = machine.describe_sources(target.sources.describe_location(""))
        self.mutation.versions = facts.pop("versions") | ready.versions
        self.mutation.machine = facts
        self.mutation.seconds_to_start = ready.seconds
        for problem in ready.problems:
            self._report_problem(problem)
        self.recorder = CoverageRecorder(
            self.plan, self.pool, self.listener, ready.guards, self.kill_confirmer.record_pass
        )
        modules = {fault.module for fault in self.plan.faults}
        self.pool.import_modules(sorted({*modules, *self.recorder.coverage.imported}))
        unknown_count = len(self.recorder.unknown_guards)
        self.listener.report_ready(ready, len(ready.guards) - unknown_count)

    def _run_own_suites(self) -> None:
        """Run each fault under the suites of its family, before the others' lines are recorded.

        So the first fault need not wait for hundreds of guards. What the family does not kill is
        undecided, and goes on with the guards of all suites.
        """
        if not self.plan.suites or not self.recorder.unknown_guards or self.mutation.fates:
            return
        started = time.monotonic()
        self.recorder.record_unknown_guards(self.plan.suites)
        self.mutation.seconds_to_reach = time.monotonic() - started
        self.coverage.guards = self._list_passing_guards()
        self._has_all_guards = False
        self.pool.run_attempts(self._iterate_first_attempts())
        self._has_all_guards = True
        self.listener.report_own_suites(len(self.mutation.fates), len(self.plan.faults))

    def _iterate_first_attempts(self) -> Iterator[PendingAttempt]:
        for fault in self.plan.faults:
            case = self._make_case(fault)
            if case.remaining_guards and fault.id not in self.plan.equivalents:
                yield self._make_attempt(case)

    def _make_case(self, fault: MutationFault) -> FaultCase:
        """Return the case of a fault, with those guards that reach it and have not run it."""
        source = self.plan.target.sources.read(fault.module)
        assert source is not None
        reaching = line_coverage.find_reaching_guards(fault, source.text, self.coverage)
        case = self._undecided.pop(fault.id, None)
        if case is None:
            result = FaultResult(
                fault,
                Verdict.UNREACHED,
                family=self.plan.families.get(fault.target, ""),
                diff=fault_outcomes.format_fault_diff(fault, source.text),
            )
            case = FaultCase(result, [])
        new = [guard for guard in reaching if guard.guard not in case.tried]
        case.remaining_guards = self.guard_order.sort_guards(fault, new)
        case.tried |= {guard.guard for guard in new}
        return case

    # Coverage

    def _list_passing_guards(self) -> dict[str, GuardCoverage]:
        known = self.recorder.list_recorded()
        return {guard.guard: guard for guard in known if guard.outcome is Outcome.PASSED}

    def _measure_coverage(self) -> None:
        """Record the lines of guards, and leave out the guards that do not pass."""
        started = time.monotonic()
        if self.plan_from_coverage or len(self.mutation.fates) < len(self.plan.faults):
            self.recorder.record_unknown_guards()
        self.mutation.seconds_to_reach += time.monotonic() - started
        known = self.recorder.list_recorded()
        for guard in known:
            if guard.outcome in (Outcome.NA, Outcome.SKIPPED):
                self.mutation.left_out.append(f"{guard.guard}: {guard.headline}")
            elif guard.outcome is not Outcome.PASSED:
                self._report_problem(f"{guard.guard} fails without any fault: {guard.headline}")
        self.mutation.left_out.append(ENGINE_GUARDS_EXCLUDED)
        self.mutation.guards = [
            GuardFacts(
                guard.guard, guard.outcome.value, guard.seconds, guard.headline, guard.stand_ins
            )
            for guard in known
        ]
        self.coverage = self.recorder.coverage
        self.coverage.guards = self._list_passing_guards()

    # Faults

    def _iterate_attempts(self) -> Iterator[PendingAttempt]:
        """Yield the first attempt on each reached fault; lazily, so that the order uses kills."""
        for result in self.mutation.fates:  # results from before a stop
            if result.by:
                self.guard_order.record_kill(result.fault, result.by)
            elif result.passed and not result.longer:
                self._defer_longer_attempt(result)
        done = {result.fault.id for result in self.mutation.fates}
        equivalents = self.plan.equivalents
        # Equivalents come last. They take longest, since none of their guards fails.
        for fault in sorted(self.plan.faults, key=lambda fault: fault.id in equivalents):
            if fault.id in done:
                continue
            case = self._make_case(fault)
            if not case.tried:
                case.result.why = "no guard runs its lines"
                self._store_result(case.result)
            elif fault.id in equivalents and not self.plan.run_equivalents:
                case.result.fate = Verdict.EQUAL
                case.result.why = equivalents[fault.id]
                self._store_result(case.result)
            elif case.remaining_guards:
                yield self._make_attempt(case)
            else:
                self._handle_survival(case, case.unreached_reason)

    def _make_attempt(self, case: FaultCase) -> PendingAttempt:
        failing = self.kill_confirmer.failing_guards
        case.remaining_guards = [g for g in case.remaining_guards if g.guard not in failing]
        on_report = partial(self._handle_report, case)
        limits = self._compute_limits(case)
        return PendingAttempt(limits, on_report, case.result.fault, case.example_factor)

    def _compute_limits(self, case: FaultCase) -> list[tuple[str, float]]:
        return [
            (guard.guard, self.guard_order.compute_limit(guard, case.example_factor))
            for guard in case.remaining_guards
        ]

    def _handle_report(
        self, case: FaultCase, report: FaultAttemptReport, guard_names: list[str]
    ) -> None:
        result = case.result
        result.seconds += report.fork_side.seconds + report.fork_side.overhead
        result.ran += report.reach
        result.stand_ins = add_counts(
            result.stand_ins, *(ended.side.stand_ins for ended in report.results)
        )
        if case.example_factor == 1:
            self._record_passes(report, guard_names)
        case.passing_guards += fault_outcomes.list_passing_guards(report.results, guard_names)
        case.conflicts += [ended.conflict for ended in report.results if ended.conflict]
        kill = fault_outcomes.find_killing_guard(report, guard_names)
        if report.not_live_reason:
            result.fate, result.why = Verdict.NOT_LIVE, report.not_live_reason
            self._finish_case(case)
        elif kill is None:
            self._handle_survival(case, report.unreached_reason)
        else:
            guard, side = kill
            if side.headline == NO_RESULT_HEADLINE:
                side.outcome = Outcome.LOST
                problem = f"{result.fault.id}: {guard}: {NO_RESULT_HEADLINE}: {side.detail}"
                self._report_problem(problem)
            run_count = guard_names.index(guard) + 1
            limits = self._compute_limits(case)[:run_count]
            case.remaining_guards = case.remaining_guards[run_count:]
            on_confirmation = partial(self._handle_confirmation, case, guard)
            self.kill_confirmer.confirm_kill(
                FailedAttempt(result.fault, limits, case.example_factor, side, on_confirmation)
            )

    def _handle_confirmation(self, case: FaultCase, guard: str, side: SideResult | None) -> None:
        """Store the kill; without one, run the remaining guards."""
        if side is not None and side.outcome in FATES_WITHOUT_EVIDENCE:
            fault_outcomes.record_lack_of_evidence(case.result, guard, side)
            if side.outcome is Outcome.HANG:
                self._choose_guards_after_hang(case)
        elif side is not None:
            fault_outcomes.record_kill(case.result, guard, side)
            self.guard_order.record_kill(case.result.fault, guard)
            self._finish_case(case)
            return
        if case.remaining_guards:
            self.pool.waiting.append(self._make_attempt(case))
        else:
            self._handle_survival(case)

    def _choose_guards_after_hang(self, case: FaultCase) -> None:
        """Put the quickest guards first, and leave out all of them after a second hang.

        A loop that does not end for one example may end for another; most guards would hang as
        well, each for its limit.
        """
        key = self.guard_order.estimate_seconds
        case.remaining_guards = [] if case.has_hung else sorted(case.remaining_guards, key=key)
        case.has_hung = True

    def _handle_survival(self, case: FaultCase, unreached_reason: str = "") -> None:
        result = case.result
        if not self._has_all_guards:
            case.unreached_reason = unreached_reason
            self._undecided[result.fault.id] = case
            return
        if result.fate in FATES_WITHOUT_EVIDENCE.values():
            pass  # guards that passed do not say how the other one would have ended
        elif not result.ran:
            described = fault_outcomes.describe_unreached(case.conflicts, len(case.tried))
            result.why = unreached_reason or described
        else:
            result.fate = Verdict.SURVIVED
            if case.example_factor == 1:
                result.passed = case.passing_guards
                self._defer_longer_attempt(result)
        self._finish_case(case)

    def _record_passes(self, report: FaultAttemptReport, guard_names: list[str]) -> None:
        """Record the seconds of untraced passes, for the time limits of later attempts."""
        for name, ended in zip(guard_names, report.results, strict=False):
            if ended.side.outcome is Outcome.PASSED and not ended.conflict:
                self.guard_order.record_pass(name, ended.side.seconds)

    def _defer_longer_attempt(self, result: FaultResult) -> None:
        """Run a survivor's guards again after all other faults, with more examples."""
        known = self.coverage.guards
        guards = [known[name] for name in result.passed if name in known]
        is_equivalent = result.fault.id in self.plan.equivalents  # more examples would not help
        if self.plan.example_factor > 1 and guards and not is_equivalent:
            case = FaultCase(result, guards, self.plan.example_factor)
            self.pool.deferred.append(self._make_attempt(case))

    def _finish_case(self, case: FaultCase) -> None:
        case.result.longer = case.example_factor > 1
        self._store_result(case.result)

    def _store_result(self, result: FaultResult) -> None:
        """Store a fault's result; after a longer attempt it replaces the first one."""
        reason = self.plan.equivalents.get(result.fault.id)
        is_reached = result.fate in REACHED_OUTCOMES and result.fate is not Verdict.HANG
        if reason is not None and is_reached:
            result.why = reason
            if result.fate is not Verdict.KILLED:
                result.fate = Verdict.EQUAL
        if not result.longer:
            self.mutation.fates.append(result)
        number = next(n for n, known in enumerate(self.mutation.fates, 1) if known is result)
        self.store.save_result(self.mutation.id, number, result)
        self.listener.report_result(self.mutation, result)
