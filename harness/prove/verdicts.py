"""What a cell comes to, from what its sides came to."""

from __future__ import annotations

from harness.matching.states import State
from harness.store.prove.values import Cell, Outcome, Side, Verdict

DEATHS = {
    Outcome.SEGFAULT: Verdict.SEGFAULT,
    Outcome.ABORT: Verdict.ABORT,
    Outcome.KILLED: Verdict.KILLED,
    Outcome.HANG: Verdict.HANG,
    Outcome.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY,
    Outcome.CUDA_ERROR: Verdict.CUDA_ERROR,
}
# Ways in which a bug shows, once the other side has passed. A hang, a kill and a lack of memory
# depend on the machine: they prove nothing.
TELLING = {Outcome.FAILED, Outcome.SEGFAULT, Outcome.ABORT, Outcome.CUDA_ERROR}
BAD_END = {Outcome.ERROR, Outcome.SKIPPED, Outcome.EXITED, Outcome.LOST}
AS_IS = "as is"


def judge(cell: Cell) -> None:
    """Give a cell its verdict, once all its sides are there."""
    if AS_IS in cell.sides:
        cell.verdict, cell.why = _as_is(cell, cell.sides[AS_IS])
    else:
        cell.verdict, cell.why = _both(cell.sides["fixed"], cell.sides["buggy"])
    for side in cell.sides.values():
        if side.first:
            cell.why += f" ({side.side} at the second attempt; the first: {side.first})"


def _both(fixed: Side, buggy: Side) -> tuple[Verdict, str]:
    away = [side for side in (fixed, buggy) if side.outcome is Outcome.NA]
    if len(away) == 2:
        return Verdict.NA, fixed.headline
    if fixed.outcome in BAD_END:
        return Verdict.BROKEN, f"fixed: {fixed.headline}"
    if away:
        return Verdict.BROKEN, f"{away[0].side}: n/a, and the other side is not: {away[0].headline}"
    if fixed.outcome in DEATHS:
        return DEATHS[fixed.outcome], f"fixed: {fixed.headline}"
    if fixed.outcome is Outcome.FAILED and fixed.reach:
        return Verdict.BROKEN, f"fixed: {fixed.headline}"
    if buggy.outcome in BAD_END:
        return Verdict.BROKEN, f"buggy: {buggy.headline}"
    if not (fixed.reach and buggy.reach):
        sides = [side.side for side in (fixed, buggy) if not side.reach]
        return (
            Verdict.UNREACHED,
            f"the toggled code never ran on the {' and the '.join(sides)} side",
        )
    if buggy.outcome is Outcome.PASSED:
        return Verdict.TOOTHLESS, f"it passes buggy, and the toggled code ran {buggy.reach} times"
    if buggy.outcome not in TELLING:
        return DEATHS[buggy.outcome], f"buggy: {buggy.headline}"
    return Verdict.PROVEN, buggy.headline


def _as_is(cell: Cell, side: Side) -> tuple[Verdict, str]:
    if side.outcome is Outcome.NA:
        return Verdict.NA, side.headline
    if side.outcome in BAD_END:
        return Verdict.BROKEN, side.headline
    if side.outcome in DEATHS and side.outcome not in TELLING:
        return DEATHS[side.outcome], side.headline
    if not side.reach:
        return Verdict.UNREACHED, "the toggle's code never ran"
    says = State.BUGGY if side.outcome in TELLING else State.FIXED
    if says.value != cell.state:
        return Verdict.DIFFERS, f"running says {says.value}, the sources say {cell.state}"
    return (Verdict.HAS_BUG if says is State.BUGGY else Verdict.HAS_FIX), side.headline
