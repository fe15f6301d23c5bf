"""What a cell comes to, from what its sides came to, and what has to be run again to say so.

A guard that fails by chance fails with the fix in as often as with it out. Of the same thing, run
on both sides, a proof needs `FAILS` failures and `PASSES` passes and nothing else; a rate p gives
that with p**FAILS * (1 - p)**PASSES, which is at most 0.0084, whatever p is (at 4/7).
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.fixes.matching.toggle_status import ToggleState
from harness.store.prove.values import (
    BUG_OUTCOMES,
    CellResult,
    CellVerdict,
    RepeatMode,
    SideOutcome,
    SideRepetition,
    SideResult,
    is_expected_outcome,
)

REQUIRED_FAILURES = 4  # with the fix out; the first run is one of them
REQUIRED_PASSES = 3  # with the fix in
LONG_SIDE_SECONDS = 5.0  # seconds of a side from which on earlier runs may stand for repetitions

VERDICT_OF_DEATH = {
    SideOutcome.SEGFAULT: CellVerdict.SEGFAULT,
    SideOutcome.ABORT: CellVerdict.ABORT,
    SideOutcome.KILLED: CellVerdict.KILLED,
    SideOutcome.HANG: CellVerdict.HANG,
    SideOutcome.OUT_OF_MEMORY: CellVerdict.OUT_OF_MEMORY,
    SideOutcome.CUDA_ERROR: CellVerdict.CUDA_ERROR,
}
INVALID_OUTCOMES = {SideOutcome.ERROR, SideOutcome.SKIPPED, SideOutcome.EXITED, SideOutcome.LOST}
AS_IS = "as is"
SIDE_PHRASES = {"buggy": "with the fix out", "fixed": "with the fix in"}


def judge_cell(cell: CellResult) -> None:
    """Give a cell its verdict, once all its sides are there and nothing is `missing`."""
    if AS_IS in cell.sides:
        cell.verdict, cell.why = _judge_as_is(cell, cell.sides[AS_IS])
    else:
        cell.verdict, cell.why = _judge_both_sides(cell.sides["fixed"], cell.sides["buggy"])
        if cell.verdict is CellVerdict.PROVEN:
            cell.verdict, cell.why = _judge_repetitions(cell)
    for side in cell.sides.values():
        for first in filter(None, (side.first, *(again.first for again in side.again))):
            cell.why += f" ({side.side} at the second attempt; the first: {first})"


def find_missing_sides(cell: CellResult) -> list[str]:
    """The sides that have to be run again before a verdict, each as often as it has to."""
    fixed, buggy = cell.sides["fixed"], cell.sides["buggy"]
    if _judge_both_sides(fixed, buggy)[0] is not CellVerdict.PROVEN or any(
        _find_differing_repetitions(cell)
    ):
        return []
    fails = REQUIRED_FAILURES - 1 - len(buggy.again)
    passes = REQUIRED_PASSES - _count_first_pass(buggy) - len(fixed.again)
    return ["buggy"] * fails + ["fixed"] * passes


def is_long_to_repeat(cell: CellResult) -> bool:
    """Whether what is run again takes so long that earlier runs may stand for it."""
    takes = max(side.seconds for side in cell.sides.values())
    return (
        cell.sides["buggy"].way in (RepeatMode.WHOLE, RepeatMode.SEARCH)
        and takes >= LONG_SIDE_SECONDS
    )


def _count_first_pass(buggy: SideResult) -> int:
    """The first pass counts where it is one of what failed; a search may have met other examples.

    What Hypothesis reports has failed once more at the end of its search, so that one counts.
    """
    return int(buggy.way in (RepeatMode.WHOLE, RepeatMode.EXPLICIT))


def _find_differing_repetitions(cell: CellResult) -> Iterator[tuple[str, SideRepetition]]:
    for name in SIDE_PHRASES:
        for again in cell.sides[name].again:
            if not is_expected_outcome(name, again.outcome):
                yield name, again


def _judge_both_sides(fixed: SideResult, buggy: SideResult) -> tuple[CellVerdict, str]:
    away = [side for side in (fixed, buggy) if side.outcome is SideOutcome.NA]
    if len(away) == 2:
        return CellVerdict.NA, fixed.headline
    for side in (fixed, buggy):
        if side.outcome is SideOutcome.FLAKY:
            return CellVerdict.FLAKY, f"{side.side}: {side.headline}"
    if fixed.outcome in INVALID_OUTCOMES:
        return CellVerdict.BROKEN, f"fixed: {fixed.headline}"
    if away:
        return (
            CellVerdict.BROKEN,
            f"{away[0].side}: n/a, and the other side is not: {away[0].headline}",
        )
    if fixed.outcome in VERDICT_OF_DEATH:
        return VERDICT_OF_DEATH[fixed.outcome], f"fixed: {fixed.headline}"
    if fixed.outcome is SideOutcome.FAILED and fixed.reach:
        return CellVerdict.BROKEN, f"fixed: {fixed.headline}"
    if buggy.outcome in INVALID_OUTCOMES:
        return CellVerdict.BROKEN, f"buggy: {buggy.headline}"
    if not (fixed.reach and buggy.reach):
        sides = [side.side for side in (fixed, buggy) if not side.reach]
        return (
            CellVerdict.UNREACHED,
            f"the toggled code never ran on the {' and the '.join(sides)} side",
        )
    if buggy.outcome is SideOutcome.PASSED:
        return (
            CellVerdict.TOOTHLESS,
            f"it passes buggy, and the toggled code ran {buggy.reach} times",
        )
    if buggy.outcome not in BUG_OUTCOMES:
        return VERDICT_OF_DEATH[buggy.outcome], f"buggy: {buggy.headline}"
    return CellVerdict.PROVEN, buggy.headline


def _judge_repetitions(cell: CellResult) -> tuple[CellVerdict, str]:
    """What runs the same each time is proven; one time that differs is chance."""
    fixed, buggy = cell.sides["fixed"], cell.sides["buggy"]
    differing = next(_find_differing_repetitions(cell), None)
    if differing is None:
        return CellVerdict.PROVEN, buggy.headline + _describe_borrowed_repetitions(cell)
    name, again = differing
    out = 1 + sum(is_expected_outcome("buggy", each.outcome) for each in buggy.again)
    within = sum(not is_expected_outcome("fixed", each.outcome) for each in fixed.again)
    times = _count_first_pass(buggy) + len(fixed.again)
    what = "the example that was found" if buggy.way is RepeatMode.EXAMPLE else "it"
    how = f"{again.outcome}: {again.headline}" if again.headline else again.outcome.value
    return CellVerdict.FLAKY, (
        f"{what} failed {out} of {1 + len(buggy.again)} times {SIDE_PHRASES['buggy']} and "
        f"{within} of {times} {SIDE_PHRASES['fixed']}; once more {SIDE_PHRASES[name]}: {how}{_describe_borrowed_repetitions(cell)}"
    )


def _describe_borrowed_repetitions(cell: CellResult) -> str:
    """How many of the repetitions are those of earlier runs, and of which."""
    runs = [again.run for name in SIDE_PHRASES for again in cell.sides[name].again if again.run]
    if not runs:
        return ""
    names = ", ".join(dict.fromkeys(runs))
    return f" ({len(runs)} of its repetitions are what earlier runs saw: {names})"


def _judge_as_is(cell: CellResult, result: SideResult) -> tuple[CellVerdict, str]:
    if result.outcome is SideOutcome.NA:
        return CellVerdict.NA, result.headline
    if result.outcome is SideOutcome.FLAKY:
        return CellVerdict.FLAKY, result.headline
    if result.outcome in INVALID_OUTCOMES:
        return CellVerdict.BROKEN, result.headline
    if result.outcome in VERDICT_OF_DEATH and result.outcome not in BUG_OUTCOMES:
        return VERDICT_OF_DEATH[result.outcome], result.headline
    if not result.reach:
        return CellVerdict.UNREACHED, "the toggle's code never ran"
    says = ToggleState.BUGGY if result.outcome in BUG_OUTCOMES else ToggleState.FIXED
    if says.value != cell.state:
        return CellVerdict.DIFFERS, f"running says {says.value}, the sources say {cell.state}"
    return (
        CellVerdict.HAS_BUG if says is ToggleState.BUGGY else CellVerdict.HAS_FIX
    ), result.headline
