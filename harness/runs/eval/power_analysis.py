"""How small a drop the paired verdicts find: every course that a cell can take, with its odds.

Nothing is simulated here: after each batch the odds of each count of lost and gained items are
known, courses that reach a verdict end, and the others go on. The tests simulate the same with the
real driver and compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from harness.runs.eval.paired_statistics import (
    ALPHA,
    BATCH_ITEMS,
    DEFAULT_ITEMS,
    TOLERANCE,
    AccuracyVerdict,
    compute_required_log_wealth,
    decide_verdict,
)

TARGET_POWER = 0.95
TABLE_ITEMS = (50, 100, 200, 400, 800)
TABLE_COMPARISON_COUNTS = (1, 12, 48)
DROP_STEP = 0.001  # drops are told to this
MIN_ODDS = 1e-9  # courses below this are left out, and counted as cannot-tell


@dataclass(frozen=True)
class VerdictOdds:
    """How a cell of a given drop ends."""

    odds_by_verdict: dict[AccuracyVerdict, float]
    average_items: float  # asked on average

    def __getitem__(self, verdict: AccuracyVerdict) -> float:
        return self.odds_by_verdict[verdict]


def compute_verdict_odds(
    drop: float,
    items: int = DEFAULT_ITEMS,
    comparison_count: int = 1,
    churn: float = 0.0,
    *,
    alpha: float = ALPHA,
    tolerance: float = TOLERANCE,
    batch: int = BATCH_ITEMS,
) -> VerdictOdds:
    """The odds of each verdict within so many items, looked at after each batch.

    `churn` is the part of the items that flips for no reason, half each way; `drop` comes on top.
    """
    losing, gaining = churn / 2 + max(drop, 0.0), churn / 2 + max(-drop, 0.0)
    if min(items, batch) < 1 or churn < 0 or losing + gaining > 1:
        raise ValueError(f"no such cell: drop {drop}, churn {churn}, {items} items by {batch}")
    wealth = compute_required_log_wealth(comparison_count, alpha)
    ends = dict.fromkeys(AccuracyVerdict, 0.0)
    courses = {(0, 0): 1.0}
    asked, average = 0, 0.0
    while asked < items:
        size = min(batch, items - asked)
        asked += size
        average += size * sum(courses.values())
        courses = _advance_courses(courses, _compute_batch_odds(size, losing, gaining))
        for course in list(courses):
            verdict = _decide_cached(*course, asked, wealth, tolerance)
            if verdict is not AccuracyVerdict.CANNOT_TELL:
                ends[verdict] += courses.pop(course)
    ends[AccuracyVerdict.CANNOT_TELL] = 1 - sum(ends.values())
    return VerdictOdds(ends, average)


def _advance_courses(
    courses: dict[tuple[int, int], float], steps: list[tuple[int, int, float]]
) -> dict[tuple[int, int], float]:
    result: dict[tuple[int, int], float] = {}
    for (lost, gained), odds in courses.items():
        for more_lost, more_gained, chance in steps:
            if odds * chance < MIN_ODDS:
                break
            course = lost + more_lost, gained + more_gained
            result[course] = result.get(course, 0.0) + odds * chance
    return result


@lru_cache(maxsize=64)
def _compute_batch_odds(size: int, losing: float, gaining: float) -> list[tuple[int, int, float]]:
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
    return sorted((step for step in steps if step[2] > MIN_ODDS), key=lambda step: -step[2])


@lru_cache(maxsize=500_000)
def _decide_cached(
    lost: int, gained: int, items: int, required_log_wealth: float, tolerance: float
) -> AccuracyVerdict:
    counts = lost, items - lost - gained, gained
    return decide_verdict(counts, counts, required_log_wealth, tolerance)


def find_smallest_drop(
    items: int = DEFAULT_ITEMS,
    comparison_count: int = 1,
    churn: float = 0.0,
    *,
    power: float = TARGET_POWER,
    alpha: float = ALPHA,
    tolerance: float = TOLERANCE,
    batch: int = BATCH_ITEMS,
) -> float | None:
    """The smallest drop, in steps of 0.1 %, that is found with this power; None if none is."""

    def found(step: int) -> bool:
        cell = compute_verdict_odds(
            step * DROP_STEP,
            items,
            comparison_count,
            churn,
            alpha=alpha,
            tolerance=tolerance,
            batch=batch,
        )
        return cell[AccuracyVerdict.REGRESSED] >= power

    missed, enough = 0, 1
    most = round((1 - churn) / DROP_STEP)
    while not found(enough):
        if enough == most:
            return None
        missed, enough = enough, min(2 * enough, most)
    while enough - missed > 1:
        middle = (missed + enough) // 2
        missed, enough = (missed, middle) if found(middle) else (middle, enough)
    return round(enough * DROP_STEP, 6)


def compute_power_table(churn: float = 0.0) -> list[list[float | None]]:
    """A row for each number of items, a column for each number of cells."""
    return [
        [find_smallest_drop(items, cells, churn) for cells in TABLE_COMPARISON_COUNTS]
        for items in TABLE_ITEMS
    ]


def format_power_table(churn: float = 0.0) -> str:
    """The table as the documentation has it."""
    lines = [
        "| items | "
        + " | ".join(f"{n} cell{'s' * (n > 1)}" for n in TABLE_COMPARISON_COUNTS)
        + " |",
        "|---" * (len(TABLE_COMPARISON_COUNTS) + 1) + "|",
    ]
    for items, row in zip(TABLE_ITEMS, compute_power_table(churn), strict=True):
        told = ["none" if drop is None else f"{drop:.1%}" for drop in row]
        lines.append(f"| {items} | " + " | ".join(told) + " |")
    return "\n".join(lines)
