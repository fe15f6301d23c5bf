"""The smallest drop that the paired verdicts find, computed from all courses of a comparison.

A course is a pair of counts, items lost and gained so far. After each batch the probability of
every course is known; courses that reach a verdict end, and the others continue. With no churn and
a drop of 10 %, the course (5 lost, 0 gained) after 50 items has probability 0.18. The tests compare
the result with simulated runs.
"""

from __future__ import annotations

import math
from functools import lru_cache

from harness.core.outcomes import Verdict
from harness.runs.eval.paired_statistics import (
    BATCH_ITEMS,
    DEFAULT_ITEMS,
    TOLERANCE,
    compute_required_log_wealth,
    decide_verdict,
)

ACCURACY_VERDICTS = (
    Verdict.REGRESSED,
    Verdict.IMPROVED,
    Verdict.SAME,
    Verdict.CANNOT_TELL,
)
TARGET_POWER = 0.95
TABLE_ITEMS = (50, 100, 200, 400, 800)
TABLE_COMPARISON_COUNTS = (1, 12, 48)
DROP_STEP = 0.001  # the resolution of drops
MIN_ODDS = 1e-9  # less likely courses count as `cannot tell`


def compute_verdict_odds(
    drop: float,
    items: int = DEFAULT_ITEMS,
    comparison_count: int = 1,
    churn: float = 0.0,
    *,
    tolerance: float = TOLERANCE,
) -> dict[Verdict, float]:
    """Compute the odds of each verdict within so many items, with a check after each batch.

    `churn` is the share of items that flips at random, half each way; `drop` is added to it.
    """
    losing, gaining = churn / 2 + max(drop, 0.0), churn / 2 + max(-drop, 0.0)
    if items < 1 or churn < 0 or losing + gaining > 1:
        raise ValueError(f"no such cell: drop {drop}, churn {churn}, {items} items")
    wealth = compute_required_log_wealth(comparison_count)
    ends = dict.fromkeys(ACCURACY_VERDICTS, 0.0)
    courses = {(0, 0): 1.0}
    total = 0
    while total < items:
        size = min(BATCH_ITEMS, items - total)
        total += size
        courses = _advance_courses(courses, _compute_batch_odds(size, losing, gaining))
        for course in list(courses):
            verdict = _decide_cached(*course, total, wealth, tolerance)
            if verdict is not Verdict.CANNOT_TELL:
                ends[verdict] += courses.pop(course)
    ends[Verdict.CANNOT_TELL] = 1 - sum(ends.values())
    return ends


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
    """Compute the odds of the items lost and gained in a batch, the likeliest first."""
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
) -> Verdict:
    counts = lost, items - lost - gained, gained
    return decide_verdict(counts, counts, required_log_wealth, tolerance)


def find_smallest_drop(
    items: int = DEFAULT_ITEMS,
    comparison_count: int = 1,
    churn: float = 0.0,
    *,
    tolerance: float = TOLERANCE,
) -> float | None:
    """Find the smallest drop, in steps of 0.1 %, detected with the target power."""

    def is_found(step: int) -> bool:
        drop = step * DROP_STEP
        cell = compute_verdict_odds(drop, items, comparison_count, churn, tolerance=tolerance)
        return cell[Verdict.REGRESSED] >= TARGET_POWER

    missed, enough = 0, 1
    most = round((1 - churn) / DROP_STEP)
    while not is_found(enough):
        if enough == most:
            return None
        missed, enough = enough, min(2 * enough, most)
    while enough - missed > 1:
        middle = (missed + enough) // 2
        missed, enough = (missed, middle) if is_found(middle) else (middle, enough)
    return round(enough * DROP_STEP, 6)


def compute_power_table(churn: float = 0.0) -> list[list[float | None]]:
    """Compute a row for each number of items, with a column for each number of cells."""
    return [
        [find_smallest_drop(items, cells, churn) for cells in TABLE_COMPARISON_COUNTS]
        for items in TABLE_ITEMS
    ]


def format_power_table(churn: float = 0.0) -> str:
    """Format the table in Markdown, as in docs/eval-statistics.md."""
    lines = [
        "| items | "
        + " | ".join(f"{n} cell{'s' * (n > 1)}" for n in TABLE_COMPARISON_COUNTS)
        + " |",
        "|---" * (len(TABLE_COMPARISON_COUNTS) + 1) + "|",
    ]
    for items, row in zip(TABLE_ITEMS, compute_power_table(churn), strict=True):
        drops = ["none" if drop is None else f"{drop:.1%}" for drop in row]
        lines.append(f"| {items} | " + " | ".join(drops) + " |")
    return "\n".join(lines)
