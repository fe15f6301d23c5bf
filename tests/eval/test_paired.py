"""Verdicts of paired accuracy: exact numbers, wealth, errors and the driver."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.runs.eval import paired_statistics
from harness.runs.eval.paired_statistics import (
    DifferentItemsError,
    ItemScore,
    PairedCounts,
    compute_log_wealth,
    compute_mcnemar_p,
    judge_pair,
)

counts = st.integers(0, 120)
errors = [st.integers(0, 8)] * 3
pairs = st.builds(PairedCounts, *[counts] * 4, *errors).filter(lambda pair: pair.items > 0)
quick = settings(max_examples=60)


@pytest.mark.parametrize(
    ("lost", "gained", "more", "both"),
    [
        (0, 0, 1.0, 1.0),
        (1, 0, 1 / 2, 1.0),
        (5, 0, 1 / 32, 1 / 16),
        (0, 5, 1.0, 1 / 16),
        (6, 1, 8 / 128, 16 / 128),  # 7 + 1 of 2**7
        (8, 2, 56 / 1024, 112 / 1024),  # 45 + 10 + 1 of 2**10
        (3, 3, 42 / 64, 1.0),  # 20 + 15 + 6 + 1 of 2**6
    ],
)
def test_mcnemar_by_hand(lost: int, gained: int, more: float, both: float) -> None:
    assert list(compute_mcnemar_p(lost, gained)) == pytest.approx([more, both])
    assert compute_mcnemar_p(3000, 3000)[1] == 1.0
    assert compute_mcnemar_p(3000, 1000)[1] < 1e-100


def test_each_kind_of_item_is_counted_as_what_it_is() -> None:
    sides: list[tuple[ItemScore, ItemScore]] = [
        (True, True), (False, False), (True, False), (False, True), (True, None), (None, False),
        (False, None), (None, True), (None, None),
    ]  # fmt: skip
    base = {str(n): mine for n, (mine, _) in enumerate(sides)}
    candidate = {str(n): others for n, (_, others) in enumerate(sides)}
    pair = PairedCounts.from_answers(base, candidate)
    assert pair == PairedCounts(1, 1, 1, 1, 2, 2, 1)
    assert (pair.items, pair.errors) == (9, 5)
    # Each error may use the other side's allowance, and no more than that.
    assert pair.at_best == (1, 4, 4)
    assert pair.at_worst == (4, 4, 1)


def test_different_items_are_told_with_their_names() -> None:
    with pytest.raises(
        DifferentItemsError, match=r"only the base has a; only the candidate has b$"
    ):
        PairedCounts.from_answers({"a": True, "c": True}, {"b": True, "c": True})
    for nothing in (lambda: PairedCounts.from_answers({}, {}), lambda: judge_pair(PairedCounts())):
        with pytest.raises(UnfixError, match="no items"):
            nothing()
    with pytest.raises(DifferentItemsError, match=r"only the base has 0, 1, 2 and 7 more$"):
        PairedCounts.from_answers({str(n): True for n in range(10)}, {})


@pytest.mark.parametrize("drop", [-0.3, -0.05, 0.0, 0.05, 0.4])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_the_mean_wealth_under_the_null_is_one(drop: float, spread: float) -> None:
    items = 12
    alike = (1 - abs(drop)) * (1 - spread)
    losing, gaining = (1 - alike + drop) / 2, (1 - alike - drop) / 2
    mean = 0.0
    for lost in range(items + 1):
        for gained in range(items + 1 - lost):
            rest = items - lost - gained
            odds = float(math.comb(items, lost) * math.comb(items - lost, gained))
            odds *= losing**lost * gaining**gained * alike**rest
            mean += odds * math.exp(compute_log_wealth(lost, rest, gained, drop))
    assert mean == pytest.approx(1.0)


@pytest.mark.parametrize("cells", [1, 12, 48, 69])
def test_the_default_items_without_a_difference_are_the_same(cells: int) -> None:
    pair = PairedCounts(both_right=150, both_wrong=50)
    assert pair.items == paired_statistics.DEFAULT_ITEMS
    judgement = judge_pair(pair, comparison_count=cells)
    assert judgement.verdict is Verdict.SAME
    tolerance = paired_statistics.TOLERANCE
    assert -tolerance < judgement.low <= 0 <= judgement.high < tolerance
    assert judgement.further_items == 0


def test_the_further_items_are_estimated_or_said_not_to_help() -> None:
    judgement = judge_pair(PairedCounts(both_right=50, may_either=50))
    assert judgement.further_items is None
    assert "more such items would not tell" in str(judgement)
    judgement = judge_pair(PairedCounts(both_right=200), comparison_count=70)
    assert (judgement.verdict, judgement.further_items) == (Verdict.CANNOT_TELL, 1)
    assert "about 1 more items would tell" in str(judgement)


@pytest.mark.parametrize(("cells", "lost"), [(1, 9), (12, 13), (48, 15)])
def test_so_many_lost_and_none_gained_are_a_regression(cells: int, lost: int) -> None:
    for side, expected in ((1, Verdict.REGRESSED), (-1, Verdict.IMPROVED)):
        for flips, verdict in ((lost, expected), (lost - 1, Verdict.CANNOT_TELL)):
            counted = (flips, 0)[::side]
            judgement = judge_pair(PairedCounts(200 - flips, 0, *counted), comparison_count=cells)
            assert judgement.verdict is verdict
    # The level is the requested one, and not far below.
    assert cells / paired_statistics.ALPHA < 2.0**lost < 16 * cells / paired_statistics.ALPHA


@quick
@given(pairs, st.integers(1, 60), st.sampled_from([0.01, 0.05, 0.2]))
def test_verdict_and_interval_agree(pair: PairedCounts, cells: int, tolerance: float) -> None:
    judgement = judge_pair(pair, comparison_count=cells, tolerance=tolerance)
    near = 1e-8
    if judgement.verdict is Verdict.REGRESSED:
        assert judgement.low > -near
    elif judgement.verdict is Verdict.IMPROVED:
        assert judgement.high < near
    else:
        assert judgement.low < near
        assert judgement.high > -near
        inside = judgement.low > -tolerance and judgement.high < tolerance
        close = min(abs(judgement.low + tolerance), abs(judgement.high - tolerance)) < near
        assert close or inside == (judgement.verdict is Verdict.SAME)
    assert judgement.low - near <= judgement.drop <= judgement.high + near


@quick
@given(pairs, st.data())
def test_no_answer_to_errors_changes_the_verdict(pair: PairedCounts, data: st.DataObject) -> None:
    judgement = judge_pair(pair)
    lost = data.draw(st.integers(0, pair.may_lose))
    gained = data.draw(st.integers(0, pair.may_gain))
    either = data.draw(st.integers(0, pair.may_either))
    also = data.draw(st.integers(0, pair.may_either - either))
    answered = PairedCounts(
        pair.both_right + pair.errors - lost - gained - either - also,
        pair.both_wrong,
        pair.lost + lost + either,
        pair.gained + gained + also,
    )
    assert answered.items == pair.items
    after = judge_pair(answered)
    if judgement.verdict is Verdict.SAME:  # which a proven small change may replace
        assert max(abs(after.low), abs(after.high)) < paired_statistics.TOLERANCE
    elif judgement.verdict is not Verdict.CANNOT_TELL:
        assert after.verdict is judgement.verdict
    assert judgement.low <= after.low + 1e-8
    assert judgement.high >= after.high - 1e-8


def test_errors_are_neither_wrong_answers_nor_dropped() -> None:
    lost = judge_pair(PairedCounts(both_right=180, lost=20))
    failed = judge_pair(PairedCounts(both_right=180, may_lose=20))
    dropped = judge_pair(PairedCounts(both_right=180))
    assert lost.verdict is Verdict.REGRESSED
    assert dropped.verdict is Verdict.SAME
    assert failed.verdict is Verdict.CANNOT_TELL
    assert failed.drop == 0
    assert failed.high == lost.high
    assert "20 unanswered by a side" in str(failed)
    assert judge_pair(PairedCounts(both_right=399, may_lose=1)).verdict is Verdict.SAME
