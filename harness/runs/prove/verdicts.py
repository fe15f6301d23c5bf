"""The verdict over a cell, and the sides that have to run again before it.

A guard that fails by chance fails with the fix applied as often as with it reverted. So one run of
each side is no proof, and both are repeated: a proof needs `REQUIRED_FAILURES` failures with the
fix reverted, `REQUIRED_PASSES` passes with it applied, and nothing else. A test that fails at rate
p gives that with p**4 * (1 - p)**3, which is at most 0.0084, whatever p is (at 4/7).
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.fixes.matching.toggle_status import ToggleState
from harness.guards.verdicts import (
    INVALID_OUTCOMES,
    REQUIRED_FAILURES,
    REQUIRED_PASSES,
    VERDICT_OF_DEATH,
    judge_sides,
)
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

LONG_SIDE_SECONDS = 5.0  # from this length on, earlier runs may replace repetitions
AS_IS = "as is"
SIDE_PHRASES = {"buggy": "with the fix reverted", "fixed": "with the fix applied"}


def judge_cell(cell: CellResult) -> None:
    """Set a cell's verdict, once its sides have run and `find_missing_sides` is empty."""
    if AS_IS in cell.sides:
        cell.verdict, cell.why = _judge_as_is(cell, cell.sides[AS_IS])
    else:
        cell.verdict, cell.why = judge_sides(cell.sides["fixed"], cell.sides["buggy"])
        if cell.verdict is CellVerdict.PROVEN:
            cell.verdict, cell.why = _judge_repetitions(cell)
    for side in cell.sides.values():
        for first in filter(None, (side.first, *(again.first for again in side.again))):
            cell.why += f" ({side.side} at the second attempt; the first: {first})"


def find_missing_sides(cell: CellResult) -> list[str]:
    """Return the sides that have to run again before a verdict, one entry for each run."""
    fixed, buggy = cell.sides["fixed"], cell.sides["buggy"]
    verdict, _ = judge_sides(fixed, buggy)
    if verdict is not CellVerdict.PROVEN or any(_find_differing_repetitions(cell)):
        return []
    failures = REQUIRED_FAILURES - 1 - len(buggy.again)
    passes = REQUIRED_PASSES - _count_first_pass(buggy) - len(fixed.again)
    return ["buggy"] * failures + ["fixed"] * passes


def is_long_to_repeat(cell: CellResult) -> bool:
    """Return whether repetitions take so long that earlier runs may replace them."""
    if cell.sides["buggy"].way not in (RepeatMode.WHOLE, RepeatMode.SEARCH):
        return False
    return max(side.seconds for side in cell.sides.values()) >= LONG_SIDE_SECONDS


def _count_first_pass(buggy: SideResult) -> int:
    """Return 1 if the first pass is one of the passes that a proof needs, else 0.

    It counts if it ran the failing example; a search may have drawn others. The first failure
    always counts: Hypothesis reports only examples that fail again at the end of its search.
    """
    return int(buggy.way in (RepeatMode.WHOLE, RepeatMode.EXPLICIT))


def _find_differing_repetitions(cell: CellResult) -> Iterator[tuple[str, SideRepetition]]:
    for name in SIDE_PHRASES:
        for again in cell.sides[name].again:
            if not is_expected_outcome(name, again.outcome):
                yield name, again


def _judge_repetitions(cell: CellResult) -> tuple[CellVerdict, str]:
    """Judge the repetitions: proven if all agree, flaky if one differs."""
    fixed, buggy = cell.sides["fixed"], cell.sides["buggy"]
    borrowed = _describe_borrowed_repetitions(cell)
    differing = next(_find_differing_repetitions(cell), None)
    if differing is None:
        return CellVerdict.PROVEN, buggy.headline + borrowed
    name, again = differing
    failures = 1 + sum(is_expected_outcome("buggy", each.outcome) for each in buggy.again)
    failures_fixed = sum(not is_expected_outcome("fixed", each.outcome) for each in fixed.again)
    runs_fixed = _count_first_pass(buggy) + len(fixed.again)
    subject = "the example that was found" if buggy.way is RepeatMode.EXAMPLE else "it"
    outcome = f"{again.outcome}: {again.headline}" if again.headline else again.outcome.value
    return CellVerdict.FLAKY, (
        f"{subject} failed {failures} of {1 + len(buggy.again)} times {SIDE_PHRASES['buggy']} and "
        f"{failures_fixed} of {runs_fixed} {SIDE_PHRASES['fixed']}; "
        f"once more {SIDE_PHRASES[name]}: {outcome}{borrowed}"
    )


def _describe_borrowed_repetitions(cell: CellResult) -> str:
    """Describe the number of repetitions from earlier runs, and name those runs."""
    runs = [again.run for name in SIDE_PHRASES for again in cell.sides[name].again if again.run]
    if not runs:
        return ""
    names = ", ".join(dict.fromkeys(runs))
    return f" ({len(runs)} of its repetitions are those of earlier runs: {names})"


def _judge_as_is(cell: CellResult, result: SideResult) -> tuple[CellVerdict, str]:
    """Return the verdict of `lifecycle`: whether the release has the bug when it runs."""
    outcome = result.outcome
    if outcome is SideOutcome.NA:
        return CellVerdict.NA, result.headline
    if outcome is SideOutcome.FLAKY:
        return CellVerdict.FLAKY, result.headline
    if outcome in INVALID_OUTCOMES:
        return CellVerdict.BROKEN, result.headline
    if outcome in VERDICT_OF_DEATH and outcome not in BUG_OUTCOMES:
        return VERDICT_OF_DEATH[outcome], result.headline
    if not result.reach:
        return CellVerdict.UNREACHED, "the toggle's code never ran"
    state = ToggleState.BUGGY if outcome in BUG_OUTCOMES else ToggleState.FIXED
    if state.value != cell.state:
        return CellVerdict.DIFFERS, f"running says {state.value}, the sources say {cell.state}"
    verdict = CellVerdict.HAS_BUG if state is ToggleState.BUGGY else CellVerdict.HAS_FIX
    return verdict, result.headline
