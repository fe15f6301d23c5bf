"""What a fault comes to, from what its guards said."""

from __future__ import annotations

import re

from harness.matching.nearest import diff
from harness.mutate.messages import PASSES, Looked, Ran
from harness.store.mutate.faults import Fault
from harness.store.mutate.values import Fate, Fated, How
from harness.store.prove.values import Outcome, Side

REPORT = re.compile(r"^harness\.checking\.violations\.\w+: ", re.MULTILINE)
HOW = {
    Outcome.ERROR: How.EXCEPTION,
    Outcome.FLAKY: How.EXCEPTION,
    Outcome.SEGFAULT: How.CRASH,
    Outcome.ABORT: How.CRASH,
    Outcome.KILLED: How.CRASH,
    Outcome.LOST: How.CRASH,
    Outcome.HANG: How.HANG,
    Outcome.OUT_OF_MEMORY: How.OUT_OF_MEMORY,
    Outcome.CUDA_ERROR: How.CUDA_ERROR,
    Outcome.EXITED: How.EXIT,
}


def how(side: Side) -> How:
    if side.outcome is Outcome.FAILED:
        return How.MEMORY if REPORT.search(side.detail) else How.ASSERTION
    return HOW[side.outcome]


def killer(looked: Looked, guards: list[str]) -> tuple[str, Side] | None:
    """The guard that failed and what it said; `guards` were to run, in this order."""
    for ran, guard in zip(looked.ended, guards, strict=False):
        if ran.side.outcome not in PASSES:
            return guard, ran.side
    if looked.last.outcome is Outcome.PASSED:
        return None
    # It took the process with it; after the last one, it was the end of the process itself.
    return guards[min(len(looked.ended), len(guards) - 1)], looked.last


def killed(fated: Fated, guard: str, side: Side) -> None:
    fated.fate, fated.how, fated.by = Fate.KILLED, how(side), guard
    fated.headline, fated.example, fated.detail = side.headline, side.example, side.detail


def saw(ended: list[Ran], guards: list[str]) -> list[str]:
    """The guards that ran the fault's code and noticed nothing."""
    return [
        guard
        for ran, guard in zip(ended, guards, strict=False)
        if ran.ran and ran.side.outcome is Outcome.PASSED
    ]


def why_unreached(conflicts: list[str], guards: int) -> str:
    """Its lines were run without it, and its code was not with it."""
    if conflicts and len(conflicts) == guards:
        return f"each guard that runs its lines changes them itself: {conflicts[0]}"
    return "its code did not run, though guards run its lines without it"


def diff_of(fault: Fault, text: str) -> str:
    place = fault.module.replace(".", "/") + ".py"
    return diff(text, fault.applied(text), f"a/{place}", f"b/{place}")
