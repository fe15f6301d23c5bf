"""The confirmation of kills: a guard detects a fault only if it fails again, and passes without it.

The evidence is that of a proof (`guards/verdicts`): what failed fails `REQUIRED_FAILURES` times
with the fault, first time included and each time in a fork of its own (on a GPU in a process that
runs others, too) with other random numbers, and passes `REQUIRED_PASSES` times without it. Of a
guard that draws examples, the failing example is repeated, and the whole search has to pass once
without the fault.

Example: guards a and b run in one fork, and b fails. Alone with the fault b's example passes; so
the kill is rejected. Then a and b run without the fault; if b fails again, it is reported as a
guard that fails after a.

A guard that hangs, lacks memory or loses its process runs once more, alone. If that is how it ends
again, this is no evidence of the fault, and no kill: a fate of its own, as is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from harness.core.outcomes import Outcome
from harness.guards.verdicts import REQUIRED_FAILURES, REQUIRED_PASSES
from harness.runs.mutate import fault_outcomes
from harness.runs.mutate.attempt_pool import AttemptPool, PendingAttempt
from harness.runs.mutate.fault_outcomes import FATES_WITHOUT_EVIDENCE
from harness.runs.mutate.messages import FaultAttemptReport
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import RepeatMode, SideResult

# For a guard that may only have been slow: the minimum in seconds, and the factor of its limit.
SLOW_RETRY_LIMITS = (15.0, 2.0)
GuardLimits = list[tuple[str, float]]  # guards with their time limits
ConfirmationCallback = Callable[[SideResult | None], None]
WithoutFaultKey = tuple[tuple[str, ...], int, int]  # guards, factor of examples, repetition


@dataclass(frozen=True)
class FailedAttempt:
    """A failure with a fault; the last of the guards failed, after the passes of the others."""

    fault: MutationFault
    guards: GuardLimits
    example_factor: int
    side: SideResult
    on_confirmation: ConfirmationCallback

    @property
    def alone(self) -> GuardLimits:
        return self.guards[-1:]

    @property
    def repeats_example(self) -> bool:
        return self.side.way in (RepeatMode.EXAMPLE, RepeatMode.EXPLICIT)


class KillConfirmer:
    """Runs guards again, and remembers their results without a fault."""

    def __init__(
        self,
        pool: AttemptPool,
        report_problem: Callable[[str], None],
        on_pass: Callable[[FaultAttemptReport, list[str]], None],
    ) -> None:
        self.failing_guards: set[str] = set()  # guards that fail without a fault
        self._pool = pool
        self._report_problem = report_problem
        self._on_pass = on_pass  # called with reports of passes without a fault
        self._results: dict[WithoutFaultKey, SideResult | None] = {}
        self._callbacks: dict[WithoutFaultKey, list[ConfirmationCallback]] = {}

    def record_pass(self, guard: str) -> None:
        """Record that the guard passed in this run, alone and without a fault."""
        self._results[(guard,), 1, 0] = None

    def confirm_kill(self, failed: FailedAttempt) -> None:
        """Confirm how a guard ended with a fault.

        `on_confirmation` gets the result of the guard, or None if it is not the fault's: a failure
        is a kill, any other result a fate without evidence.
        """
        outcome = failed.side.outcome
        if outcome is Outcome.REFUSED:
            failed.on_confirmation(failed.side)
        elif outcome in FATES_WITHOUT_EVIDENCE:
            self._run_alone(failed)
        else:
            self._repeat_failure(failed, 1)

    def _run_alone(self, failed: FailedAttempt) -> None:
        """Run a guard again whose end the machine may have caused, with more time if it hung."""

        def judge_report(report: FaultAttemptReport, names: list[str]) -> None:
            kill = fault_outcomes.find_killing_guard(report, names)
            if kill is None:
                failed.on_confirmation(None)
            elif kill[1].outcome in FATES_WITHOUT_EVIDENCE:
                failed.on_confirmation(kill[1])
            else:
                self._repeat_failure(replace(failed, guards=failed.alone, side=kill[1]), 1)

        alone = failed.alone
        if failed.side.outcome is Outcome.HANG:
            least, times = SLOW_RETRY_LIMITS
            alone = [(name, max(least, times * limit)) for name, limit in alone]
        self._pool.waiting.append(
            PendingAttempt(alone, judge_report, failed.fault, failed.example_factor)
        )

    def _repeat_failure(self, failed: FailedAttempt, failure_count: int) -> None:
        """Repeat what failed, with the fault alone, until it failed often enough."""
        if failure_count == REQUIRED_FAILURES:
            self._require_whole_pass(failed)
            return

        def judge_report(report: FaultAttemptReport, names: list[str]) -> None:
            kill = fault_outcomes.find_killing_guard(report, names)
            if kill and report.reach and kill[1].outcome not in FATES_WITHOUT_EVIDENCE:
                self._repeat_failure(failed, failure_count + 1)
            elif failure_count == 1:  # it may fail by itself, and then it is reported
                self._run_without_fault(
                    failed.guards, failed.example_factor, lambda _: failed.on_confirmation(None)
                )
            else:
                failed.on_confirmation(None)

        self._pool.waiting.append(
            PendingAttempt(
                failed.alone, judge_report, failed.fault, failed.example_factor, failed.side
            )
        )

    def _require_whole_pass(self, failed: FailedAttempt) -> None:
        """Require that the guard passes as a whole without the fault, with as many examples."""

        def repeat_pass(failing: SideResult | None) -> None:
            if failing is not None:
                failed.on_confirmation(None)
            else:
                self._repeat_pass(failed, int(not failed.repeats_example))

        self._run_without_fault(failed.alone, failed.example_factor, repeat_pass)

    def _repeat_pass(self, failed: FailedAttempt, pass_count: int) -> None:
        """Repeat what failed without the fault, until it passed often enough.

        A whole guard does so once for all of its kills, an example for each kill.
        """
        if pass_count == REQUIRED_PASSES:
            failed.on_confirmation(failed.side)
            return

        def judge_pass(failing: SideResult | None) -> None:
            if failing is not None:
                failed.on_confirmation(None)
            else:
                self._repeat_pass(failed, pass_count + 1)

        if not failed.repeats_example:
            self._run_without_fault(failed.alone, failed.example_factor, judge_pass, pass_count)
            return

        def judge_report(report: FaultAttemptReport, names: list[str]) -> None:
            failure = fault_outcomes.find_killing_guard(report, names)
            if failure is not None:
                self._report_failing_guard(
                    failure[0], names, failed.example_factor, failure[1], "an example of "
                )
            elif report.results[0].side.outcome is not Outcome.PASSED:
                # It cannot be drawn without the fault, so nothing was checked: search again.
                self._repeat_pass(
                    replace(
                        failed, side=msgspec.structs.replace(failed.side, way=RepeatMode.WHOLE)
                    ),
                    1,
                )
                return
            judge_pass(failure[1] if failure is not None else None)

        self._pool.waiting.append(
            PendingAttempt(failed.alone, judge_report, None, failed.example_factor, failed.side)
        )

    def _run_without_fault(
        self,
        guards: GuardLimits,
        example_factor: int,
        on_result: ConfirmationCallback,
        repetition: int = 0,
    ) -> None:
        """Run guards once in one process without a fault; return the failure, or None.

        A guard whose lines were recorded in this run passed there, and does not run again.
        """
        key = tuple(name for name, _ in guards), example_factor, repetition
        if key in self._results:
            on_result(self._results[key])
            return
        self._callbacks.setdefault(key, []).append(on_result)
        if len(self._callbacks[key]) == 1:
            repeated = SideResult("", Outcome.PASSED) if repetition else None  # other numbers
            self._pool.waiting.append(
                PendingAttempt(
                    guards,
                    partial(self._record_result, key),
                    example_factor=example_factor,
                    repeated=repeated,
                )
            )

    def _record_result(
        self, key: WithoutFaultKey, report: FaultAttemptReport, names: list[str]
    ) -> None:
        failure = fault_outcomes.find_killing_guard(report, names)
        self._results[key] = failure[1] if failure is not None else None
        if failure is not None:
            self._report_failing_guard(failure[0], names, key[1], failure[1])
        elif key[1] == 1:
            self._on_pass(report, names)
        for callback in self._callbacks.pop(key):
            callback(self._results[key])

    def _report_failing_guard(
        self,
        guard: str,
        guard_names: list[str],
        example_factor: int,
        side: SideResult,
        subject: str = "",
    ) -> None:
        self.failing_guards.add(guard)
        how = f" with {example_factor} times the examples" if example_factor > 1 else ""
        if len(guard_names) > 1:
            how += f" after {', '.join(name for name in guard_names if name != guard)}"
        self._report_problem(
            f"{subject}{guard} fails without any fault{how}: {side.headline or side.outcome}"
        )
