"""The stated power, compared with simulated runs."""

from __future__ import annotations

import random

import pytest

from harness.core.outcomes import Verdict
from harness.runs.eval import paired_statistics, power_analysis
from harness.runs.eval.paired_statistics import PairedCounts
from harness.runs.eval.power_analysis import compute_verdict_odds, find_smallest_drop


def simulate_batches(drop: float, items: int, cells: int, churn: float, trials: int) -> float:
    """Return the share of 'regressed' results, tested batch by batch."""
    chance = random.Random(5)
    losing, gaining = churn / 2 + drop, churn / 2
    found = 0
    for _ in range(trials):
        pair, verdict = PairedCounts(), Verdict.CANNOT_TELL
        while verdict is Verdict.CANNOT_TELL and pair.items < items:
            size = min(paired_statistics.BATCH_ITEMS, items - pair.items)
            draws = [chance.random() for _ in range(size)]
            lost = sum(at < losing for at in draws)
            gained = sum(losing <= at < losing + gaining for at in draws)
            pair += PairedCounts(size - lost - gained, 0, lost, gained)
            verdict = paired_statistics.judge_pair(pair, comparison_count=cells).verdict
        found += verdict is Verdict.REGRESSED
    return found / trials


@pytest.mark.parametrize(
    ("items", "cells", "churn"),
    [(200, 1, 0.0), (200, 12, 0.0), (200, 48, 0.0), (200, 12, 0.05), (400, 48, 0.05)],
)
def test_the_stated_drop_is_found(items: int, cells: int, churn: float) -> None:
    drop = find_smallest_drop(items, cells, churn)
    assert drop is not None
    trials = 200
    found = simulate_batches(drop, items, cells, churn, trials)
    odds = compute_verdict_odds(drop, items, cells, churn)
    # 95 % to 97.5 % as stated; three standard deviations of 200 trials.
    assert power_analysis.TARGET_POWER <= odds[Verdict.REGRESSED] < 0.975
    assert found == pytest.approx(odds[Verdict.REGRESSED], abs=0.047)


def test_a_drop_of_the_tolerance_is_not_called_the_same() -> None:
    for churn in (0.0, 0.02):
        drop, items = paired_statistics.TOLERANCE, paired_statistics.MAX_ITEMS
        odds = compute_verdict_odds(drop, items, 1, churn)
        assert odds[Verdict.SAME] <= paired_statistics.ALPHA / 2


def test_too_few_items_find_nothing() -> None:
    assert find_smallest_drop(5, 48) is None
    assert find_smallest_drop(10, 1) == 0.964
