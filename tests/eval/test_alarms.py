"""The rate of false alarms in paired accuracy, and the coverage of its intervals."""

from __future__ import annotations

from functools import cache

from harness.core.outcomes import Verdict
from harness.runs.eval import paired_statistics
from harness.runs.eval.paired_statistics import compute_required_log_wealth, decide_verdict


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
