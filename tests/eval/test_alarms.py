"""The rate of false alarms in paired accuracy, and the coverage of its intervals."""

from __future__ import annotations

import random
from functools import cache

import pytest

from harness.runs.eval import paired_statistics
from harness.runs.eval.paired_statistics import (
    PairedCounts,
    compute_drop_interval,
    compute_required_log_wealth,
    decide_verdict,
)
from harness.store.eval.values import ComparisonVerdict as Verdict


def draw_changes(
    chance: random.Random, size: int, losing: float, gaining: float
) -> tuple[int, int]:
    lost = gained = 0
    for _ in range(size):
        at = chance.random()
        lost += at < losing
        gained += losing <= at < losing + gaining
    return lost, gained


@cache
def find_verdict(lost: int, gained: int, items: int, cells: int, alpha: float) -> Verdict:
    side = (lost, items - lost - gained, gained)
    required = compute_required_log_wealth(cells, alpha)
    return decide_verdict(side, side, required, paired_statistics.TOLERANCE)


def test_the_odds_of_a_false_alarm_by_enumeration() -> None:
    """The worst null: every item flips, with a test after each. All sequences are counted."""
    cells, batches = 12, 400
    courses, alarms = {0: 1.0}, 0.0
    for items in range(1, batches + 1):
        after: dict[int, float] = {}
        for lost, odds in courses.items():
            for more in (0, 1):
                after[lost + more] = after.get(lost + more, 0.0) + odds / 2
        for lost in list(after):
            if find_verdict(lost, items - lost, items, cells, paired_statistics.ALPHA) in (
                Verdict.REGRESSED,
                Verdict.IMPROVED,
            ):
                alarms += after.pop(lost)
        courses = after
    assert alarms <= paired_statistics.ALPHA / cells
    assert alarms >= paired_statistics.ALPHA / cells / 10  # not weaker than necessary, either


@pytest.mark.parametrize(
    ("losing", "gaining"), [(0.0, 0.0), (0.02, 0.02), (0.1, 0.0), (0.15, 0.05), (0.5, 0.5)]
)
def test_the_interval_holds_at_every_check(losing: float, gaining: float) -> None:
    trials, missed = 120, 0
    chance = random.Random(7)
    for _ in range(trials):
        pair = PairedCounts()
        inside = True
        for size in (10, 20, 70, 100):
            lost, gained = draw_changes(chance, size, losing, gaining)
            pair += PairedCounts(size - lost - gained, 0, lost, gained)
            low, high = compute_drop_interval(pair, compute_required_log_wealth(1, 0.1))
            inside &= low <= losing - gaining <= high
        missed += not inside
    assert missed <= 0.1 * trials
