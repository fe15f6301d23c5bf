"""Lossless comparisons: ties are not bugs, bugs are not ties, and missing data is never equal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import TOKENS, near_tie, one, output

from harness.core.errors import UnfixError
from harness.runs.eval.token_divergence import (
    MAX_NOISE,
    MIN_LOGPROB_NOISE,
    MIN_MARGIN_NOISE,
    BaseNoise,
    TokenOutput,
    compare_outputs,
    find_first_difference,
    measure_noise,
)
from harness.runs.eval.token_divergence import TokenVerdict as Verdict

EPS = MIN_LOGPROB_NOISE["float32"]


def test_the_same_is_equal() -> None:
    comparison = one(output(), output())
    assert comparison.verdict is Verdict.EQUAL
    assert str(comparison) == "equal: 1 equal"
    assert (comparison.items["a"].largest, comparison.items["a"].mean) == (0.0, 0.0)
    assert one(output((), (), ()), output((), (), ())).verdict is Verdict.EQUAL


@pytest.mark.parametrize("dtype", MIN_LOGPROB_NOISE)
def test_without_noise_the_data_type_says_what_is_near(dtype: str) -> None:
    for apart, verdict in ((1.9, Verdict.EQUAL), (2.1, Verdict.DRIFTS)):
        by = -0.05 - apart * MIN_LOGPROB_NOISE[dtype]
        moved = output(logprobs=(-0.05, by, -0.05, -0.05))
        comparison = compare_outputs({"a": output()}, {"a": output()}, {"a": moved}, dtype=dtype)
        assert comparison.verdict is verdict


def test_the_noise_is_what_the_base_is_from_itself_over_equal_prefixes() -> None:
    again = TokenOutput((5, 6, 9, 8), (-0.05, -0.08, -5.0, -9.0), (3.0, 3.0, 0.04, 3.0))
    base = TokenOutput(TOKENS, (-0.05, -0.05, -0.7, -0.05), (3.0, 3.0, 0.02, 3.0))
    floor = measure_noise({"a": base, "b": output()}, {"a": again}, "float32")
    # The flip moved each token by 0.03, over margins of 0.02 and 0.04; the rest does not count.
    assert floor.largest == pytest.approx(0.03)
    assert floor.mean == pytest.approx(0.015)
    assert (floor.positions, floor.flips, floor.unusable_repeats) == (2, 1, 1)
    wide = TokenOutput((5, 6, 9, 8), (-0.05, -0.08, -5.0, -9.0), (3.0, 3.0, 0.4, 3.0))
    assert measure_noise({"a": base}, {"a": wide}, "float32").largest == pytest.approx(0.21)


def test_logprobs_within_the_noise_are_equal_and_beyond_it_drift() -> None:
    again = output(logprobs=(-0.05, -0.06, -0.05, -0.05))
    near = output(logprobs=(-0.05, -0.05, -0.05, -0.069))
    far = output(logprobs=(-0.05, -0.05, -0.05, -0.071))
    assert one(output(), near, again).verdict is Verdict.EQUAL
    comparison = one(output(), far, again)
    assert comparison.verdict is Verdict.DRIFTS
    assert comparison.items["a"].largest == pytest.approx(0.021)
    assert "at 3 by 0.021, noise 0.01" in str(comparison)
    # Without that repeat it is not noise.
    assert one(output(), near).verdict is Verdict.DRIFTS


def test_a_small_shift_everywhere_drifts_though_the_noise_has_larger_peaks() -> None:
    again = output(logprobs=(-0.05, -0.09, -0.05, -0.05))
    moved = output(logprobs=(-0.08, -0.08, -0.08, -0.08))
    comparison = one(output(), moved, again)
    assert comparison.verdict is Verdict.DRIFTS
    assert "on average" in str(comparison)


def test_another_token_at_a_tie_is_a_near_tie_whatever_follows() -> None:
    comparison = one(near_tie(2, EPS), near_tie(2, EPS, token=9))
    assert (comparison.verdict, comparison.items["a"].position) == (Verdict.NEAR_TIE, 2)
    candidate = TokenOutput((9, 1, 1, 1), (-0.7, -9.0, -9.0, -9.0), (0.0, 9.0, 9.0, 9.0))
    assert one(near_tie(0), candidate).verdict is Verdict.NEAR_TIE
    # A sampled token that was not the best is no tie.
    assert one(near_tie(2, -3.0), near_tie(2, -3.0, token=9)).verdict is Verdict.DIFFERS


def test_another_token_where_the_base_was_sure_differs() -> None:
    comparison = one(output(), output((5, 6, 9, 8)))
    assert comparison.verdict is Verdict.DIFFERS
    assert "at 2, where the base was sure by 3" in str(comparison)
    for margin, verdict in ((1.9, Verdict.NEAR_TIE), (2.1, Verdict.DIFFERS)):
        assert one(near_tie(2, margin * EPS), near_tie(2, 0.0, token=9)).verdict is verdict


def test_a_sure_candidate_is_no_tie_although_the_base_was_near_one() -> None:
    base = near_tie(2)
    sure = TokenOutput((5, 6, 9, 8), (-0.05, -0.05, -0.7, -0.05), (3.0, 3.0, 2.0, 3.0))
    assert "candidate was sure by 2" in str(one(base, sure))
    # Its logprob alone shows that, too; if not, then that it was not near the base's.
    likely = TokenOutput(sure.tokens, (-0.05, -0.05, -0.01, -0.05))
    assert one(base, likely).verdict is Verdict.DIFFERS
    third = TokenOutput(sure.tokens, (-0.05, -0.05, -4.0, -0.05))
    assert "token that was not near" in str(one(base, third))


def test_a_tie_after_a_drift_is_a_drift() -> None:
    candidate = near_tie(2, 0.0, token=9)
    moved = TokenOutput(candidate.tokens, (-0.05, -0.5, -0.7, -0.05), candidate.margins)
    comparison = one(near_tie(2), moved)
    assert comparison.verdict is Verdict.DRIFTS
    assert comparison.items["a"].position == 2


def test_a_larger_noise_makes_a_wider_tie() -> None:
    base, candidate = near_tie(2, 0.03), near_tie(2, 0.0, token=9)
    assert one(base, candidate).verdict is Verdict.DIFFERS
    again = TokenOutput(TOKENS, (-0.05, -0.05, -0.72, -0.05), base.margins)
    assert one(base, candidate, again).verdict is Verdict.NEAR_TIE


def bare(*tokens: int) -> TokenOutput:
    return TokenOutput(tokens)


def test_tokens_alone_are_equal_or_cannot_be_told() -> None:
    comparison = one(bare(1, 2), bare(1, 2))
    assert comparison.verdict is Verdict.EQUAL
    assert "by its tokens alone" in str(comparison)
    comparison = one(bare(1, 2), bare(1, 3))
    assert comparison.verdict is Verdict.CANNOT_TELL
    assert "margin is not known" in str(comparison)


def test_without_margins_a_likely_token_is_sure() -> None:
    def without(last: float, token: int) -> TokenOutput:
        return TokenOutput((1, token), (-0.1, last))

    assert one(without(-0.1, 2), without(-0.1, 3)).verdict is Verdict.DIFFERS
    assert one(without(0.0, 2), without(0.0, 3)).verdict is Verdict.DIFFERS
    assert one(without(-0.7, 2), without(-0.7, 3)).verdict is Verdict.CANNOT_TELL


def test_where_the_base_itself_chose_the_same_it_is_a_tie() -> None:
    assert one(bare(1, 2), bare(1, 3), again=bare(1, 3)).verdict is Verdict.NEAR_TIE
    for again in (bare(1, 4), bare(4, 3), bare(1, 2), bare(1), TokenOutput((1, 3), error="lost")):
        assert one(bare(1, 2), bare(1, 3), again=again).verdict is Verdict.CANNOT_TELL
    assert one(bare(1, 2), bare(1), again=bare(1)).verdict is Verdict.NEAR_TIE


def test_one_that_stops_early_differs_where_it_stopped() -> None:
    short = TokenOutput(TOKENS[:2], (-0.05, -0.05), (3.0, 3.0))
    comparison = one(output(), short)
    assert (comparison.verdict, comparison.items["a"].position) == (Verdict.DIFFERS, 2)
    assert one(near_tie(2), short).verdict is Verdict.NEAR_TIE
    # The candidate continues: the base's margin at its end is unknown.
    assert one(short, output()).verdict is Verdict.DIFFERS
    assert one(short, near_tie(2)).verdict is Verdict.CANNOT_TELL
    assert one(output(), output((), (), ())).verdict is Verdict.DIFFERS


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
@settings(max_examples=60)
def test_the_position_is_the_end_of_the_common_prefix(one: list[int], other: list[int]) -> None:
    at = find_first_difference(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logprob_that_is_no_number_is_a_difference(bad: float) -> None:
    broken = output(logprobs=(-0.05, -0.05, bad, -0.05))
    for base, candidate in ((output(), broken), (broken, output()), (broken, broken)):
        comparison = one(base, candidate, again=output())
        assert comparison.verdict is Verdict.DIFFERS
        assert "at 2 the" in str(comparison)
        assert "no number" in str(comparison)
    # In the repeat it is not noise.
    comparison = one(output(), output((5, 6, 9, 8)), again=broken)
    assert comparison.verdict is Verdict.DIFFERS
    assert comparison.noise == BaseNoise(EPS, EPS, 0, 0, 1, MIN_MARGIN_NOISE["float32"])


def test_a_margin_may_be_infinite_but_is_a_number() -> None:
    alone = output(margins=(3.0, math.inf, 3.0, 3.0))
    assert one(alone, alone).verdict is Verdict.EQUAL
    assert one(alone, output((5, 9, 7, 8))).verdict is Verdict.DIFFERS
    assert one(output(), output(margins=(3.0, math.nan, 3.0, 3.0))).verdict is Verdict.DIFFERS
    candidate = near_tie(1, 0.0, token=9)  # beyond the first difference, too
    broken = TokenOutput(candidate.tokens, (-0.05, -0.7, -0.05, math.nan), candidate.margins)
    assert one(near_tie(1), broken).verdict is Verdict.DIFFERS


def test_a_base_that_does_not_repeat_itself_measures_nothing() -> None:
    again = output((5, 6, 9, 8))  # sure of another token
    for candidate in (output(), output((5, 6, 9, 8)), output((4, 4, 4, 4))):
        comparison = one(output(), candidate, again)
        assert comparison.noise.largest > MAX_NOISE
        assert comparison.verdict is Verdict.CANNOT_TELL
        assert "from itself" in str(comparison)
    nan = output(logprobs=(math.nan,) * 4)
    assert one(output(), nan, again).verdict is Verdict.DIFFERS


def test_no_items_or_an_unknown_data_type_are_refused() -> None:
    with pytest.raises(UnfixError, match="no items"):
        compare_outputs({}, {"a": output()}, {})
    with pytest.raises(UnfixError, match="no data type int4: one of float32"):
        compare_outputs({"a": output()}, {}, {"a": output()}, dtype="int4")


def test_a_missing_item_is_named_and_never_equal() -> None:
    base, candidate = {"a": output(), "b": output()}, {"a": output(), "c": output()}
    comparison = compare_outputs(base, {}, candidate, dtype="float32")
    assert comparison.verdict is Verdict.CANNOT_TELL
    assert comparison.missing == {"b": "candidate", "c": "base"}
    assert str(comparison) == "cannot-tell: 1 equal, 2 missing"


@pytest.mark.parametrize("side", ["base", "candidate"])
def test_an_error_is_kept_and_never_equal(side: str) -> None:
    failed = {"a": output(), "b": TokenOutput((), error="HTTP 500")}
    fine = {"a": output(), "b": output((), (), ())}
    base, candidate = (failed, fine) if side == "base" else (fine, failed)
    comparison = compare_outputs(base, base, candidate)
    assert comparison.verdict is Verdict.CANNOT_TELL
    assert comparison.errors == {"b": f"{side}: HTTP 500"}
    assert list(comparison.items) == ["a"]
    assert "1 unanswered" in str(comparison)


def test_errors_alone_are_not_equal_and_hide_no_difference() -> None:
    failed = {"a": TokenOutput((), error="lost")}
    comparison = compare_outputs(failed, {}, failed)
    assert comparison.verdict is Verdict.CANNOT_TELL
    assert comparison.errors == {"a": "base: lost; candidate: lost"}
    other = {"a": TokenOutput((), error="x"), "b": output((1, 2, 3, 4))}
    comparison = compare_outputs({"a": output(), "b": output()}, {}, other)
    assert comparison.verdict is Verdict.DIFFERS


def test_the_worst_item_is_the_verdict() -> None:
    base = {"tie": near_tie(2), "same": output(), "drift": output(), "sure": output()}
    drift = output(logprobs=(-0.9, -0.05, -0.05, -0.05))
    candidate = {"tie": near_tie(2, token=9), "same": output(), "drift": drift}
    candidate["sure"] = output((5, 1, 7, 8))
    for without, verdict in (
        ([], Verdict.DIFFERS),
        (["sure"], Verdict.DRIFTS),
        (["sure", "drift"], Verdict.NEAR_TIE),
        (["sure", "drift", "tie"], Verdict.EQUAL),
    ):
        left = {item: one for item, one in base.items() if item not in without}
        comparison = compare_outputs(left, left, {item: candidate[item] for item in left})
        assert comparison.verdict is verdict
        assert comparison.counts.total() == len(left)
