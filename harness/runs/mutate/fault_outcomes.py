"""The outcome of a fault, from the results of its guards."""

from __future__ import annotations

import re

from harness.core.outcomes import Outcome, Verdict
from harness.fixes.matching.nearest_code import format_diff
from harness.runs.mutate.messages import PASSING_OUTCOMES, FaultAttemptReport, GuardResult
from harness.sanitizer.violations import EXCEPTIONS_MODULE
from harness.store.mutate.faults import MutationFault
from harness.store.mutate.values import FaultResult, KillCause
from harness.store.prove.values import SideResult

# The line of a traceback that names a violation of a kernel check.
VIOLATION_LINE = re.compile(rf"^{re.escape(EXCEPTIONS_MODULE)}\.\w+: ", re.MULTILINE)
KILL_CAUSES = {
    Outcome.ERROR: KillCause.EXCEPTION,
    Outcome.FLAKY: KillCause.EXCEPTION,
    Outcome.SEGFAULT: KillCause.CRASH,
    Outcome.ABORT: KillCause.CRASH,
    Outcome.CUDA_ERROR: KillCause.CUDA_ERROR,
    Outcome.EXITED: KillCause.EXIT,
}
# Ends of a guard that are no evidence of the fault: each is a fate of its own.
FATES_WITHOUT_EVIDENCE = {
    Outcome.REFUSED: Verdict.REFUSED,
    Outcome.HANG: Verdict.HANG,
    Outcome.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY,
    Outcome.SIGNAL: Verdict.LOST,
    Outcome.LOST: Verdict.LOST,
}


def classify_kill(side: SideResult) -> KillCause:
    if side.outcome is Outcome.FAILED:
        return (
            KillCause.MEMORY_REPORT if VIOLATION_LINE.search(side.detail) else KillCause.ASSERTION
        )
    return KILL_CAUSES[side.outcome]


def find_killing_guard(
    report: FaultAttemptReport, guards: list[str]
) -> tuple[str, SideResult] | None:
    """Return the guard that failed, and its result; `guards` is the attempt's list, in order."""
    for ended, guard in zip(report.results, guards, strict=False):
        if ended.side.outcome not in PASSING_OUTCOMES:
            return guard, ended.side
    if report.fork_side.outcome is Outcome.PASSED:
        return None
    # The process ended in the next guard, or by itself after the last guard.
    return guards[min(len(report.results), len(guards) - 1)], report.fork_side


def record_kill(result: FaultResult, guard: str, side: SideResult) -> None:
    result.fate, result.how, result.by = Verdict.KILLED, classify_kill(side), guard
    result.headline, result.example, result.detail = side.headline, side.example, side.detail
    result.why = ""


def record_lack_of_evidence(result: FaultResult, guard: str, side: SideResult) -> None:
    """Record how a guard ended that neither passed nor failed; a kill by another guard counts."""
    result.fate = FATES_WITHOUT_EVIDENCE[side.outcome]
    result.why = f"{guard}: {side.headline or side.outcome}"
    result.headline, result.detail = side.headline, side.detail


def list_passing_guards(results: list[GuardResult], guards: list[str]) -> list[str]:
    """Return the guards that ran the code of the fault and passed."""
    return [
        guard
        for ended, guard in zip(results, guards, strict=False)
        if ended.reach and ended.side.outcome is Outcome.PASSED
    ]


def describe_unreached(conflicts: list[str], guards: int) -> str:
    """Describe why a fault is unreached although guards run its lines without it."""
    if conflicts and len(conflicts) == guards:
        return f"each guard that runs its lines changes them itself: {conflicts[0]}"
    return "its code did not run, though guards run its lines without it"


def format_fault_diff(fault: MutationFault, text: str) -> str:
    place = fault.module.replace(".", "/") + ".py"
    return format_diff(text, fault.apply_to(text), f"a/{place}", f"b/{place}")
