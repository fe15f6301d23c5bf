"""The confirmation of kills: a guard detects a fault only if it passes without it.

A guard may also fail by itself: with more examples than before, after another guard that left state
behind, or because the machine killed the process. So it runs again without the fault. If others ran
before it, or the machine may be the reason, it also runs alone with the fault. Example: guards
a and b run in one fork and b fails. Alone with the fault b passes; then a and b run without the
fault, and b fails again. The kill is rejected, and b is reported as a guard that fails after a.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.runs.mutate import fault_outcomes
from harness.runs.mutate.messages import FaultAttemptReport
from harness.runs.mutate.scheduler import MutationScheduler, PendingAttempt
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import SideOutcome, SideResult

# Ends of a process that the machine may have caused, and not the fault.
MACHINE_OUTCOMES = {
    SideOutcome.HANG,
    SideOutcome.KILLED,
    SideOutcome.OUT_OF_MEMORY,
    SideOutcome.LOST,
}
# For a guard that may only have been slow: the minimum in seconds, and the factor of its limit.
SLOW_RETRY_LIMITS = (15.0, 2.0)
GuardLimits = list[tuple[str, float]]  # guards with their time limits
ConfirmationCallback = Callable[[SideResult | None], None]


class KillConfirmer:
    """Runs guards again, and remembers their results without a fault."""

    def __init__(
        self,
        scheduler: MutationScheduler,
        report_problem: Callable[[str], None],
        on_pass: Callable[[FaultAttemptReport, list[str]], None],
    ) -> None:
        self.failing_guards: set[str] = set()  # guards that fail without a fault
        self._scheduler = scheduler
        self._report_problem = report_problem
        self._on_pass = on_pass  # called with reports of passes without a fault
        self._results: dict[tuple[tuple[str, ...], int], SideResult | None] = {}
        self._callbacks: dict[tuple[tuple[str, ...], int], list[ConfirmationCallback]] = {}

    def record_pass(self, guard: str) -> None:
        """Record that the guard passed in this run, alone and without a fault."""
        self._results[(guard,), 1] = None

    def confirm_kill(
        self,
        fault: MutationFault,
        guards: GuardLimits,
        example_factor: int,
        side: SideResult,
        on_confirmation: ConfirmationCallback,
    ) -> None:
        """Confirm that the last of these guards detects the fault, after the passes of the others.

        `on_confirmation` gets the result of the guard with the fault, or None if it fails anyway.
        """
        alone = guards[-1:]
        if len(guards) == 1 and side.outcome not in MACHINE_OUTCOMES:
            self._run_without_fault(
                alone, example_factor, lambda failing: on_confirmation(None if failing else side)
            )
            return

        def check_without_fault(report: FaultAttemptReport, names: list[str]) -> None:
            kill = fault_outcomes.find_killing_guard(report, names)
            if kill is not None:
                self._run_without_fault(
                    alone,
                    example_factor,
                    lambda failing: on_confirmation(None if failing else kill[1]),
                )
            elif len(guards) > 1 and side.outcome not in MACHINE_OUTCOMES:
                self._run_without_fault(
                    guards,
                    example_factor,
                    lambda failing: on_confirmation(None if failing else side),
                )
            else:
                on_confirmation(None)

        if side.outcome is SideOutcome.HANG:
            least, times = SLOW_RETRY_LIMITS
            alone = [(name, max(least, times * limit)) for name, limit in alone]
        self._scheduler.retries.append(
            PendingAttempt(alone, check_without_fault, fault, example_factor)
        )

    def _run_without_fault(
        self, guards: GuardLimits, example_factor: int, on_result: ConfirmationCallback
    ) -> None:
        """Run guards once in one process without a fault; return the failure, or None.

        A guard whose lines were recorded in this run passed there, and does not run again.
        """
        key = tuple(name for name, _ in guards), example_factor
        if key in self._results:
            on_result(self._results[key])
            return
        self._callbacks.setdefault(key, []).append(on_result)
        if len(self._callbacks[key]) > 1:
            return

        def record_result(report: FaultAttemptReport, names: list[str]) -> None:
            failure = fault_outcomes.find_killing_guard(report, names)
            self._results[key] = failure[1] if failure is not None else None
            if failure is not None:
                self._report_failing_guard(failure[0], names, example_factor, failure[1])
            elif example_factor == 1:
                self._on_pass(report, names)
            for callback in self._callbacks.pop(key):
                callback(self._results[key])

        self._scheduler.retries.append(
            PendingAttempt(guards, record_result, example_factor=example_factor)
        )

    def _report_failing_guard(
        self, guard: str, guard_names: list[str], example_factor: int, side: SideResult
    ) -> None:
        self.failing_guards.add(guard)
        how = f" with {example_factor} times the examples" if example_factor > 1 else ""
        if len(guard_names) > 1:
            how += f" after {', '.join(name for name in guard_names if name != guard)}"
        self._report_problem(
            f"{guard} fails without any fault{how}: {side.headline or side.outcome}"
        )
