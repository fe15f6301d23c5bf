"""The verdict over the two sides of a guard, for `prove` and `pytest --teeth`.

A guard is proven if it passes with the fix applied and fails with the fix reverted, and the toggled
code ran both times. Example: fixed `passed` with reach 40, buggy `failed` with reach 2 is proven;
fixed `passed` and buggy `passed` is toothless; a reach of 0 on either side is unreached, whatever
the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.store.prove.values import BUG_OUTCOMES, CellVerdict, SideOutcome, SideResult

VERDICT_OF_DEATH = {
    SideOutcome.SEGFAULT: CellVerdict.SEGFAULT,
    SideOutcome.ABORT: CellVerdict.ABORT,
    SideOutcome.KILLED: CellVerdict.KILLED,
    SideOutcome.HANG: CellVerdict.HANG,
    SideOutcome.OUT_OF_MEMORY: CellVerdict.OUT_OF_MEMORY,
    SideOutcome.CUDA_ERROR: CellVerdict.CUDA_ERROR,
}
INVALID_OUTCOMES = {
    SideOutcome.ERROR,
    SideOutcome.REFUSED,
    SideOutcome.SKIPPED,
    SideOutcome.EXITED,
    SideOutcome.LOST,
}
# The evidence that `prove`, `mutate` and `eval` require. What fails by chance, at rate p, fails so
# often with the bug and passes so often without it with p**4 * (1 - p)**3, at most 0.0084.
REQUIRED_FAILURES = 4  # with the bug, first run included
REQUIRED_PASSES = 3  # without it


def judge_sides(fixed: SideResult, buggy: SideResult) -> tuple[CellVerdict, str]:
    """Return the verdict over one run of each side, and its reason."""
    away = [side for side in (fixed, buggy) if side.outcome is SideOutcome.NA]
    if len(away) == 2:
        return CellVerdict.NA, fixed.headline
    for side in (fixed, buggy):
        if side.outcome is SideOutcome.FLAKY:
            return CellVerdict.FLAKY, f"{side.side}: {side.headline}"
    if fixed.outcome in INVALID_OUTCOMES:
        return CellVerdict.BROKEN, f"fixed: {fixed.headline}"
    if away:
        reason = f"{away[0].side}: n/a, and the other side is not: {away[0].headline}"
        return CellVerdict.BROKEN, reason
    if fixed.outcome in VERDICT_OF_DEATH:
        return VERDICT_OF_DEATH[fixed.outcome], f"fixed: {fixed.headline}"
    if fixed.outcome is SideOutcome.FAILED and fixed.reach:
        return CellVerdict.BROKEN, f"fixed: {fixed.headline}"
    if buggy.outcome in INVALID_OUTCOMES:
        return CellVerdict.BROKEN, f"buggy: {buggy.headline}"
    if not (fixed.reach and buggy.reach):
        sides = " and the ".join(side.side for side in (fixed, buggy) if not side.reach)
        return CellVerdict.UNREACHED, f"the toggled code never ran on the {sides} side"
    if buggy.outcome is SideOutcome.PASSED:
        reason = f"it passes buggy, and the toggled code ran {buggy.reach} times"
        return CellVerdict.TOOTHLESS, reason
    if buggy.outcome not in BUG_OUTCOMES:
        return VERDICT_OF_DEATH[buggy.outcome], f"buggy: {buggy.headline}"
    return CellVerdict.PROVEN, buggy.headline


def explain_weak_evidence(failed_with: Sequence[bool], failed_without: Sequence[bool]) -> str:
    """Explain why repeated runs, with a bug and without it, do not prove that it shows; or ''."""
    if not all(failed_with) or any(failed_without):
        return (
            f"it failed {sum(failed_with)} of {len(failed_with)} times with the bug and "
            f"{sum(failed_without)} of {len(failed_without)} times without it"
        )
    if len(failed_with) < REQUIRED_FAILURES or len(failed_without) < REQUIRED_PASSES:
        return (
            f"it failed {len(failed_with)} times with the bug and passed {len(failed_without)} "
            f"times without it, of {REQUIRED_FAILURES} and {REQUIRED_PASSES} that are required"
        )
    return ""


def judge_one_side(result: SideResult) -> tuple[CellVerdict, str]:
    """Return the verdict over one side, as if the cell's other side had ended as in a proof."""
    fixed = SideResult("fixed", SideOutcome.PASSED, reach=1)
    buggy = SideResult("buggy", SideOutcome.FAILED, reach=1)
    return judge_sides(fixed, result) if result.side == "buggy" else judge_sides(result, buggy)
