"""The verdict over a cell, for `prove` and `pytest --teeth`, and the runs that it still needs.

A guard is proven if it passes with the fix applied and fails with the fix reverted, and the toggled
code ran both times. Example: fixed `passed` with reach 40, buggy `failed` with reach 2 is proven;
fixed `passed` and buggy `passed` is toothless; a reach of 0 on either side is unreached, whatever
the outcome.

A guard that fails by chance fails with the fix applied as often as with it reverted. So one run of
each side is no proof, and both are repeated: a proof needs `REQUIRED_FAILURES` failures with the
fix reverted, `REQUIRED_PASSES` passes with it applied, and nothing else. A test that fails at rate
p gives that with p**4 * (1 - p)**3, which is at most 0.0084, whatever p is (at 4/7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.core.outcomes import Outcome, Verdict
from harness.fixes.matching.toggle_status import ToggleState
from harness.store.prove.values import (
    BUG_OUTCOMES,
    CellResult,
    RepeatMode,
    SideRepetition,
    SideResult,
    is_expected_outcome,
)

AS_IS = "as is"
SIDE_PHRASES = {"buggy": "with the fix reverted", "fixed": "with the fix applied"}
INVALID_OUTCOMES = {
    Outcome.ERROR,
    Outcome.REFUSED,
    Outcome.SKIPPED,
    Outcome.EXITED,
    Outcome.LOST,
}
_EXCEPTION = re.compile(r"\b\w+(Error|Exception|Group)\b")
_NO_REPORT = "that is no report of the bug: an assertion, `pytest.fail` or a check makes one"
# The evidence that `prove`, `mutate` and `eval` require. What fails by chance, at rate p, fails so
# often with the bug and passes so often without it with p**4 * (1 - p)**3, at most 0.0084.
REQUIRED_FAILURES = 4  # with the bug, first run included
REQUIRED_PASSES = 3  # without it


def judge_sides(fixed: SideResult, buggy: SideResult) -> tuple[Verdict, str]:
    """Return the verdict over one run of each side, and its reason."""
    away = [side for side in (fixed, buggy) if side.outcome is Outcome.NA]
    if len(away) == 2:
        return Verdict.NA, fixed.headline
    for side in (fixed, buggy):
        if side.outcome is Outcome.FLAKY:
            return Verdict.FLAKY, _describe_end(side)
        if side.outcome is Outcome.UNDRAWN:
            return Verdict.UNDRAWN, _describe_end(side)
    if fixed.outcome in INVALID_OUTCOMES:
        return Verdict.BROKEN, _describe_end(fixed)
    if away:
        where = SIDE_PHRASES[away[0].side]
        reason = f"n/a {where} alone: {away[0].headline}"
        return Verdict.BROKEN, reason
    if fixed.outcome.is_death:
        return Verdict(fixed.outcome.value), _describe_end(fixed)
    if fixed.outcome is Outcome.FAILED and fixed.reach:
        return Verdict.BROKEN, _describe_end(fixed)
    if buggy.outcome in INVALID_OUTCOMES:
        return Verdict.BROKEN, _describe_end(buggy)
    if not (fixed.reach and buggy.reach):
        without = [SIDE_PHRASES[one.side] for one in (fixed, buggy) if not one.reach]
        where = f" {without[0]}" if len(without) == 1 else ""
        return Verdict.UNREACHED, f"the toggled code never ran{where}"
    if buggy.outcome is Outcome.PASSED:
        reason = f"it passes with the fix reverted, and the toggled code ran {buggy.reach} times"
        return Verdict.TOOTHLESS, reason
    if buggy.outcome not in BUG_OUTCOMES:
        return Verdict(buggy.outcome.value), _describe_end(buggy)
    return Verdict.PROVEN, buggy.headline


def _describe_end(side: SideResult) -> str:
    is_exception = side.outcome is Outcome.ERROR and _EXCEPTION.search(side.headline)
    note = f"; {_NO_REPORT}" if is_exception else ""
    return f"{SIDE_PHRASES.get(side.side, side.side)}: {side.headline}{note}"


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


def judge_cell(cell: CellResult) -> None:
    """Set a cell's verdict, once its sides have run and `find_missing_sides` is empty."""
    if AS_IS in cell.sides:
        cell.verdict, cell.why = _judge_as_is(cell, cell.sides[AS_IS])
    else:
        cell.verdict, cell.why = judge_sides(cell.sides["fixed"], cell.sides["buggy"])
        if cell.verdict is Verdict.PROVEN:
            cell.verdict, cell.why = _judge_repetitions(cell)
    for side in cell.sides.values():
        for first in filter(None, (side.first, *(again.first for again in side.again))):
            where = SIDE_PHRASES.get(side.side, side.side)
            cell.why += f" ({where} at the second attempt; the first: {first})"


def find_missing_sides(cell: CellResult) -> list[str]:
    """Return the sides that have to run before a verdict, one entry for each run.

    A draw from this list decides which runs next: each order of a proof's runs is then as likely as
    any other, and no fixed order of outcomes fits the sides.
    """
    fixed, buggy = cell.sides.get("fixed"), cell.sides.get("buggy")
    is_agreed = not any(_find_differing_repetitions(cell))
    if fixed and buggy:
        if judge_sides(fixed, buggy)[0] is not Verdict.PROVEN or not is_agreed:
            return []
    elif fixed and not (is_agreed and _is_repeatable_pass(fixed)):
        return ["buggy"]
    elif buggy and not (is_agreed and buggy.outcome is Outcome.FAILED):
        return ["fixed"]  # a death costs more than a failure: it is not repeated in vain
    failures, passes = REQUIRED_FAILURES, REQUIRED_PASSES
    if buggy:
        failures -= 1 + len(buggy.again)
    if fixed:
        passes -= len(fixed.again) + (_count_first_pass(buggy) if buggy else 1)
    return ["buggy"] * failures + ["fixed"] * passes


def _is_repeatable_pass(fixed: SideResult) -> bool:
    """Return whether a pass may be repeated before the other side runs: no search may."""
    return fixed.outcome is Outcome.PASSED and fixed.way is RepeatMode.WHOLE


def _count_first_pass(buggy: SideResult) -> int:
    """Return 1 if the first pass is one of the passes that a proof needs, else 0.

    It counts if it ran the failing example; a search may have drawn others. The first failure
    always counts: Hypothesis reports only examples that fail again at the end of its search.
    """
    return int(buggy.way in (RepeatMode.WHOLE, RepeatMode.EXPLICIT))


def _find_differing_repetitions(cell: CellResult) -> Iterator[tuple[str, SideRepetition]]:
    for name, side in cell.sides.items():
        for again in side.again:
            if not is_expected_outcome(name, again.outcome):
                yield name, again


def _judge_repetitions(cell: CellResult) -> tuple[Verdict, str]:
    """Judge the repetitions: proven if all agree, flaky if one differs."""
    fixed, buggy = cell.sides["fixed"], cell.sides["buggy"]
    differing = next(_find_differing_repetitions(cell), None)
    if differing is None:
        return Verdict.PROVEN, buggy.headline
    name, again = differing
    if again.outcome is Outcome.UNDRAWN:
        return Verdict.UNDRAWN, f"{SIDE_PHRASES[name]}: {again.headline}"
    if again.outcome is Outcome.LOST:  # says nothing about the guard
        return Verdict.BROKEN, f"{SIDE_PHRASES[name]}: {again.headline}"
    failures = 1 + sum(is_expected_outcome("buggy", each.outcome) for each in buggy.again)
    failures_fixed = sum(not is_expected_outcome("fixed", each.outcome) for each in fixed.again)
    runs_fixed = _count_first_pass(buggy) + len(fixed.again)
    subject = "the example that was found" if buggy.way is RepeatMode.EXAMPLE else "it"
    outcome = f"{again.outcome}: {again.headline}" if again.headline else again.outcome.value
    return Verdict.FLAKY, (
        f"{subject} failed {failures} of {1 + len(buggy.again)} times {SIDE_PHRASES['buggy']} and "
        f"{failures_fixed} of {runs_fixed} {SIDE_PHRASES['fixed']}; "
        f"once more {SIDE_PHRASES[name]}: {outcome}"
    )


def _judge_as_is(cell: CellResult, result: SideResult) -> tuple[Verdict, str]:
    """Return the verdict of `lifecycle`: whether the release has the bug when it runs."""
    outcome = result.outcome
    if outcome is Outcome.NA:
        return Verdict.NA, result.headline
    if outcome is Outcome.FLAKY:
        return Verdict.FLAKY, result.headline
    if outcome in INVALID_OUTCOMES:
        return Verdict.BROKEN, result.headline
    if outcome.is_death and outcome not in BUG_OUTCOMES:
        return Verdict(outcome.value), result.headline
    if not result.reach:
        return Verdict.UNREACHED, "the toggle's code never ran"
    state = ToggleState.BUGGY if outcome in BUG_OUTCOMES else ToggleState.FIXED
    if state.value != cell.state:
        return Verdict.DIFFERS, f"running says {state.value}, the sources say {cell.state}"
    verdict = Verdict.HAS_BUG if state is ToggleState.BUGGY else Verdict.HAS_FIX
    return verdict, result.headline
