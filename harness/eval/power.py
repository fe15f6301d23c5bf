"""How small a drop the paired verdicts find: every course that a cell can take, with its odds.

Nothing is simulated here: after each batch the odds of each count of lost and gained items are
known, courses that reach a verdict end, and the others go on. The tests simulate the same with the
real driver and compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from harness.eval.paired import ALPHA, BATCH, ITEMS, TOLERANCE, Verdict, decide, wanted

POWER = 0.95
SIZES = (50, 100, 200, 400, 800)
CELLS = (1, 12, 48)
STEP = 0.001  # drops are told to this
UNLIKELY = 1e-9  # courses below this are left out, and counted as cannot-tell


@dataclass(frozen=True)
class Chances:
    """How a cell of a given drop ends."""

    ends: dict[Verdict, float]
    items: float  # asked on average

    def __getitem__(self, verdict: Verdict) -> float:
        return self.ends[verdict]


def chances(
    drop: float,
    items: int = ITEMS,
    cells: int = 1,
    churn: float = 0.0,
    *,
    alpha: float = ALPHA,
    tolerance: float = TOLERANCE,
    batch: int = BATCH,
) -> Chances:
    """The odds of each verdict within so many items, looked at after each batch.

    `churn` is the part of the items that flips for no reason, half each way; `drop` comes on top.
    """
    losing, gaining = churn / 2 + max(drop, 0.0), churn / 2 + max(-drop, 0.0)
    if min(items, batch) < 1 or churn < 0 or losing + gaining > 1:
        raise ValueError(f"no such cell: drop {drop}, churn {churn}, {items} items by {batch}")
    wealth = wanted(cells, alpha)
    ends = dict.fromkeys(Verdict, 0.0)
    courses = {(0, 0): 1.0}
    asked, average = 0, 0.0
    while asked < items:
        size = min(batch, items - asked)
        asked += size
        average += size * sum(courses.values())
        courses = _after(courses, _batch(size, losing, gaining))
        for course in list(courses):
            verdict = _verdict(*course, asked, wealth, tolerance)
            if verdict is not Verdict.CANNOT_TELL:
                ends[verdict] += courses.pop(course)
    ends[Verdict.CANNOT_TELL] = 1 - sum(ends.values())
    return Chances(ends, average)


def _after(
    courses: dict[tuple[int, int], float], steps: list[tuple[int, int, float]]
) -> dict[tuple[int, int], float]:
    result: dict[tuple[int, int], float] = {}
    for (lost, gained), odds in courses.items():
        for more_lost, more_gained, chance in steps:
            if odds * chance < UNLIKELY:
                break
            course = lost + more_lost, gained + more_gained
            result[course] = result.get(course, 0.0) + odds * chance
    return result


@lru_cache(maxsize=64)
def _batch(size: int, losing: float, gaining: float) -> list[tuple[int, int, float]]:
    """The odds of what a batch brings, the likeliest first."""
    alike = max(0.0, 1 - losing - gaining)
    steps = [
        (
            lost,
            gained,
            math.comb(size, lost)
            * math.comb(size - lost, gained)
            * losing**lost
            * gaining**gained
            * alike ** (size - lost - gained),
        )
        for lost in range(size + 1)
        for gained in range(size + 1 - lost)
    ]
    return sorted((step for step in steps if step[2] > UNLIKELY), key=lambda step: -step[2])


@lru_cache(maxsize=500_000)
def _verdict(lost: int, gained: int, items: int, wealth: float, tolerance: float) -> Verdict:
    counts = lost, items - lost - gained, gained
    return decide(counts, counts, wealth, tolerance)


def smallest_drop(
    items: int = ITEMS,
    cells: int = 1,
    churn: float = 0.0,
    *,
    power: float = POWER,
    alpha: float = ALPHA,
    tolerance: float = TOLERANCE,
    batch: int = BATCH,
) -> float | None:
    """The smallest drop, in steps of 0.1 %, that is found with this power; None if none is."""

    def found(step: int) -> bool:
        cell = chances(
            step * STEP, items, cells, churn, alpha=alpha, tolerance=tolerance, batch=batch
        )
        return cell[Verdict.REGRESSED] >= power

    missed, enough = 0, 1
    most = round((1 - churn) / STEP)
    while not found(enough):
        if enough == most:
            return None
        missed, enough = enough, min(2 * enough, most)
    while enough - missed > 1:
        middle = (missed + enough) // 2
        missed, enough = (missed, middle) if found(middle) else (middle, enough)
    return round(enough * STEP, 6)


def table(churn: float = 0.0) -> list[list[float | None]]:
    """A row for each number of items, a column for each number of cells."""
    return [[smallest_drop(items, cells, churn) for cells in CELLS] for items in SIZES]


def markdown(churn: float = 0.0) -> str:
    """The table as the documentation has it."""
    lines = [
        "| items | " + " | ".join(f"{n} cell{'s' * (n > 1)}" for n in CELLS) + " |",
        "|---" * (len(CELLS) + 1) + "|",
    ]
    for items, row in zip(SIZES, table(churn), strict=True):
        told = ["none" if drop is None else f"{drop:.1%}" for drop in row]
        lines.append(f"| {items} | " + " | ".join(told) + " |")
    return "\n".join(lines)
