"""What a cell comes to, from what its sides came to, and what has to be run again to say so.

A guard that fails by chance fails with the fix in as often as with it out. Of the same thing, run
on both sides, a proof needs `FAILS` failures and `PASSES` passes and nothing else; a rate p gives
that with p**FAILS * (1 - p)**PASSES, which is at most 0.0084, whatever p is (at 4/7).
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.matching.states import State
from harness.store.prove.values import Again, Cell, Outcome, Side, Verdict, Way

FAILS = 4  # with the fix out; the first run is one of them
PASSES = 3  # with the fix in
LONG = 5.0  # seconds of a side from which on earlier runs may stand for repetitions

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
WORDS = {"buggy": "with the fix out", "fixed": "with the fix in"}


def judge(cell: Cell) -> None:
    """Give a cell its verdict, once all its sides are there and nothing is `missing`."""
    if AS_IS in cell.sides:
        cell.verdict, cell.why = _as_is(cell, cell.sides[AS_IS])
    else:
        cell.verdict, cell.why = _both(cell.sides["fixed"], cell.sides["buggy"])
        if cell.verdict is Verdict.PROVEN:
            cell.verdict, cell.why = _again(cell)
    for side in cell.sides.values():
        for first in filter(None, (side.first, *(again.first for again in side.again))):
            cell.why += f" ({side.side} at the second attempt; the first: {first})"


def missing(cell: Cell) -> list[str]:
    """The sides that have to be run again before a verdict, each as often as it has to."""
    fixed, buggy = cell.sides["fixed"], cell.sides["buggy"]
    if _both(fixed, buggy)[0] is not Verdict.PROVEN or any(_differing(cell)):
        return []
    fails = FAILS - 1 - len(buggy.again)
    passes = PASSES - _first_passes(buggy) - len(fixed.again)
    return ["buggy"] * fails + ["fixed"] * passes


def is_long(cell: Cell) -> bool:
    """Whether what is run again takes so long that earlier runs may stand for it."""
    takes = max(side.seconds for side in cell.sides.values())
    return cell.sides["buggy"].way in (Way.WHOLE, Way.SEARCH) and takes >= LONG


def holds(side: str, outcome: Outcome) -> bool:
    """Whether a side ended as it has to in a proof."""
    return outcome in TELLING if side == "buggy" else outcome is Outcome.PASSED


def _first_passes(buggy: Side) -> int:
    """The first pass counts where it is one of what failed; a search may have met other examples.

    What Hypothesis reports has failed once more at the end of its search, so that one counts.
    """
    return int(buggy.way in (Way.WHOLE, Way.EXPLICIT))


def _differing(cell: Cell) -> Iterator[tuple[str, Again]]:
    for name in WORDS:
        for again in cell.sides[name].again:
            if not holds(name, again.outcome):
                yield name, again


def _both(fixed: Side, buggy: Side) -> tuple[Verdict, str]:
    away = [side for side in (fixed, buggy) if side.outcome is Outcome.NA]
    if len(away) == 2:
        return Verdict.NA, fixed.headline
    for side in (fixed, buggy):
        if side.outcome is Outcome.FLAKY:
            return Verdict.FLAKY, f"{side.side}: {side.headline}"
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


def _again(cell: Cell) -> tuple[Verdict, str]:
    """What runs the same each time is proven; one time that differs is chance."""
    fixed, buggy = cell.sides["fixed"], cell.sides["buggy"]
    differing = next(_differing(cell), None)
    if differing is None:
        return Verdict.PROVEN, buggy.headline + _taken(cell)
    name, again = differing
    out = 1 + sum(holds("buggy", each.outcome) for each in buggy.again)
    within = sum(not holds("fixed", each.outcome) for each in fixed.again)
    times = _first_passes(buggy) + len(fixed.again)
    what = "the example that was found" if buggy.way is Way.EXAMPLE else "it"
    how = f"{again.outcome}: {again.headline}" if again.headline else again.outcome.value
    return Verdict.FLAKY, (
        f"{what} failed {out} of {1 + len(buggy.again)} times {WORDS['buggy']} and "
        f"{within} of {times} {WORDS['fixed']}; once more {WORDS[name]}: {how}{_taken(cell)}"
    )


def _taken(cell: Cell) -> str:
    """How many of the repetitions are those of earlier runs, and of which."""
    runs = [again.run for name in WORDS for again in cell.sides[name].again if again.run]
    if not runs:
        return ""
    names = ", ".join(dict.fromkeys(runs))
    return f" ({len(runs)} of its repetitions are what earlier runs saw: {names})"


def _as_is(cell: Cell, side: Side) -> tuple[Verdict, str]:
    if side.outcome is Outcome.NA:
        return Verdict.NA, side.headline
    if side.outcome is Outcome.FLAKY:
        return Verdict.FLAKY, side.headline
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
