"""No kill is believed at once: the guard fails with the fault alone, and passes without it.

A guard may be ill by itself, with more examples than anybody ran before, or after another guard
that left something behind; a machine may end a process that did nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.runs.mutate import fault_outcomes
from harness.runs.mutate.messages import FaultAttemptReport
from harness.runs.mutate.scheduler import MutationScheduler, PendingAttempt
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import SideOutcome, SideResult

# What a machine does to a process as well as a fault.
MACHINE_OUTCOMES = {
    SideOutcome.HANG,
    SideOutcome.KILLED,
    SideOutcome.OUT_OF_MEMORY,
    SideOutcome.LOST,
}
SLOW_RETRY_LIMITS = (
    15.0,
    2.0,
)  # seconds at least, and times as long: what took too long may only have been slow
GuardLimits = list[tuple[str, float]]  # guards, and how long each may take
ConfirmationCallback = Callable[[SideResult | None], None]


class KillConfirmer:
    """Asks again, and remembers what guards come to without a fault."""

    def __init__(
        self,
        scheduler: MutationScheduler,
        report_problem: Callable[[str], None],
        on_pass: Callable[[FaultAttemptReport, list[str]], None],
    ) -> None:
        self.failing_guards: set[str] = set()  # guards that fail without a fault
        self._scheduler = scheduler
        self._report_problem = report_problem
        self._on_pass = on_pass  # told of guards that ran without a fault
        self._results: dict[tuple[tuple[str, ...], int], SideResult | None] = {}
        self._callbacks: dict[tuple[tuple[str, ...], int], list[ConfirmationCallback]] = {}

    def record_pass(self, guard: str) -> None:
        """In this run, by itself, without a fault."""
        self._results[(guard,), 1] = None

    def confirm_kill(
        self,
        fault: MutationFault,
        guards: GuardLimits,
        example_factor: int,
        side: SideResult,
        on_confirmation: ConfirmationCallback,
    ) -> None:
        """`side` is what the last of the guards said; `told` gets it again, or what it is, or none.

        The guards before the last one passed in the same process.
        """
        alone = guards[-1:]
        if len(guards) == 1 and side.outcome not in MACHINE_OUTCOMES:
            self._run_without_fault(
                alone, example_factor, lambda failing: on_confirmation(None if failing else side)
            )
            return

        def again(looked: FaultAttemptReport, names: list[str]) -> None:
            found = fault_outcomes.find_killing_guard(looked, names)
            if found is not None:
                self._run_without_fault(
                    alone,
                    example_factor,
                    lambda failing: on_confirmation(None if failing else found[1]),
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
        self._scheduler.retries.append(PendingAttempt(alone, again, fault, example_factor))

    def _run_without_fault(
        self, guards: GuardLimits, example_factor: int, on_result: ConfirmationCallback
    ) -> None:
        """What comes of guards in one process without a fault: none if they pass. Asked once.

        Not at all of a guard whose lines were recorded in this run: it passed there.
        """
        key = tuple(name for name, _ in guards), example_factor
        if key in self._results:
            on_result(self._results[key])
            return
        self._callbacks.setdefault(key, []).append(on_result)
        if len(self._callbacks[key]) > 1:
            return

        def answered(looked: FaultAttemptReport, names: list[str]) -> None:
            found = fault_outcomes.find_killing_guard(looked, names)
            self._results[key] = found[1] if found is not None else None
            if found is not None:
                self._report_failing_guard(found[0], names, example_factor, found[1])
            elif example_factor == 1:
                self._on_pass(looked, names)
            for one in self._callbacks.pop(key):
                one(self._results[key])

        self._scheduler.retries.append(
            PendingAttempt(guards, answered, example_factor=example_factor)
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
