"""Lossless comparisons: ties are not bugs, bugs are not ties, and missing data is never equal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import TOKENS, compare_one, make_output, make_tie

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
from harness.store.eval.values import ComparisonVerdict as Verdict

EPS = MIN_LOGPROB_NOISE["float32"]


def test_the_same_is_equal() -> None:
    comparison = compare_one(make_output(), make_output())
    assert comparison.verdict is Verdict.EQUAL
    assert str(comparison) == "equal: 1 equal"
    assert (comparison.items["a"].largest, comparison.items["a"].mean) == (0.0, 0.0)
    assert compare_one(make_output((), (), ()), make_output((), (), ())).verdict is Verdict.EQUAL


@pytest.mark.parametrize("dtype", MIN_LOGPROB_NOISE)
def test_without_noise_the_data_type_says_what_is_near(dtype: str) -> None:
    for apart, verdict in ((1.9, Verdict.EQUAL), (2.1, Verdict.DRIFTS)):
        by = -0.05 - apart * MIN_LOGPROB_NOISE[dtype]
        moved = make_output(logprobs=(-0.05, by, -0.05, -0.05))
        comparison = compare_outputs(
            {"a": make_output()}, {"a": make_output()}, {"a": moved}, dtype=dtype
        )
        assert comparison.verdict is verdict


def test_the_noise_is_what_the_base_is_from_itself_over_equal_prefixes() -> None:
    again = TokenOutput((5, 6, 9, 8), (-0.05, -0.08, -5.0, -9.0), (3.0, 3.0, 0.04, 3.0))
    base = TokenOutput(TOKENS, (-0.05, -0.05, -0.7, -0.05), (3.0, 3.0, 0.02, 3.0))
    floor = measure_noise({"a": base, "b": make_output()}, {"a": again}, "float32")
    # The flip moved each token by 0.03, over margins of 0.02 and 0.04; the rest does not count.
    assert floor.largest == pytest.approx(0.03)
    assert floor.mean == pytest.approx(0.015)
    assert (floor.positions, floor.flips, floor.unusable_repeats) == (2, 1, 1)
    wide = TokenOutput((5, 6, 9, 8), (-0.05, -0.08, -5.0, -9.0), (3.0, 3.0, 0.4, 3.0))
    assert measure_noise({"a": base}, {"a": wide}, "float32").largest == pytest.approx(0.21)


def test_logprobs_within_the_noise_are_equal_and_beyond_it_drift() -> None:
    again = make_output(logprobs=(-0.05, -0.06, -0.05, -0.05))
    near = make_output(logprobs=(-0.05, -0.05, -0.05, -0.069))
    far = make_output(logprobs=(-0.05, -0.05, -0.05, -0.071))
    assert compare_one(make_output(), near, again).verdict is Verdict.EQUAL
    comparison = compare_one(make_output(), far, again)
    assert comparison.verdict is Verdict.DRIFTS
    assert comparison.items["a"].largest == pytest.approx(0.021)
    assert "at 3 by 0.021, noise 0.01" in str(comparison)
    # Without that repeat it is not noise.
    assert compare_one(make_output(), near).verdict is Verdict.DRIFTS


def test_a_small_shift_everywhere_drifts_though_the_noise_has_larger_peaks() -> None:
    again = make_output(logprobs=(-0.05, -0.09, -0.05, -0.05))
    moved = make_output(logprobs=(-0.08, -0.08, -0.08, -0.08))
    comparison = compare_one(make_output(), moved, again)
    assert comparison.verdict is Verdict.DRIFTS
    assert "on average" in str(comparison)


def test_another_token_at_a_tie_is_a_near_tie_whatever_follows() -> None:
    comparison = compare_one(make_tie(2, EPS), make_tie(2, EPS, token=9))
    assert (comparison.verdict, comparison.items["a"].position) == (Verdict.NEAR_TIE, 2)
    candidate = TokenOutput((9, 1, 1, 1), (-0.7, -9.0, -9.0, -9.0), (0.0, 9.0, 9.0, 9.0))
    assert compare_one(make_tie(0), candidate).verdict is Verdict.NEAR_TIE
    # A sampled token that was not the best is no tie.
    assert compare_one(make_tie(2, -3.0), make_tie(2, -3.0, token=9)).verdict is Verdict.DIFFERS


def test_another_token_where_the_base_was_sure_differs() -> None:
    comparison = compare_one(make_output(), make_output((5, 6, 9, 8)))
    assert comparison.verdict is Verdict.DIFFERS
    assert "at 2, where the base was sure by 3" in str(comparison)
    for margin, verdict in ((1.9, Verdict.NEAR_TIE), (2.1, Verdict.DIFFERS)):
        assert compare_one(make_tie(2, margin * EPS), make_tie(2, 0.0, token=9)).verdict is verdict


def test_a_sure_candidate_is_no_tie_although_the_base_was_near_one() -> None:
    base = make_tie(2)
    sure = TokenOutput((5, 6, 9, 8), (-0.05, -0.05, -0.7, -0.05), (3.0, 3.0, 2.0, 3.0))
    assert "candidate was sure by 2" in str(compare_one(base, sure))
    # Its logprob alone shows that, too; if not, then that it was not near the base's.
    likely = TokenOutput(sure.tokens, (-0.05, -0.05, -0.01, -0.05))
    assert compare_one(base, likely).verdict is Verdict.DIFFERS
    third = TokenOutput(sure.tokens, (-0.05, -0.05, -4.0, -0.05))
    assert "token that was not near" in str(compare_one(base, third))


def test_a_tie_after_a_drift_is_a_drift() -> None:
    candidate = make_tie(2, 0.0, token=9)
    moved = TokenOutput(candidate.tokens, (-0.05, -0.5, -0.7, -0.05), candidate.margins)
    comparison = compare_one(make_tie(2), moved)
    assert comparison.verdict is Verdict.DRIFTS
    assert comparison.items["a"].position == 2


def test_a_larger_noise_makes_a_wider_tie() -> None:
    base, candidate = make_tie(2, 0.03), make_tie(2, 0.0, token=9)
    assert compare_one(base, candidate).verdict is Verdict.DIFFERS
    again = TokenOutput(TOKENS, (-0.05, -0.05, -0.72, -0.05), base.margins)
    assert compare_one(base, candidate, again).verdict is Verdict.NEAR_TIE


def make_bare_output(*tokens: int) -> TokenOutput:
    return TokenOutput(tokens)


def test_tokens_alone_are_equal_or_cannot_be_told() -> None:
    comparison = compare_one(make_bare_output(1, 2), make_bare_output(1, 2))
    assert comparison.verdict is Verdict.EQUAL
    assert "by its tokens alone" in str(comparison)
    comparison = compare_one(make_bare_output(1, 2), make_bare_output(1, 3))
    assert comparison.verdict is Verdict.CANNOT_TELL
    assert "margin is not known" in str(comparison)


def test_without_margins_a_likely_token_is_sure() -> None:
    def without(last: float, token: int) -> TokenOutput:
        return TokenOutput((1, token), (-0.1, last))

    assert compare_one(without(-0.1, 2), without(-0.1, 3)).verdict is Verdict.DIFFERS
    assert compare_one(without(0.0, 2), without(0.0, 3)).verdict is Verdict.DIFFERS
    assert compare_one(without(-0.7, 2), without(-0.7, 3)).verdict is Verdict.CANNOT_TELL


def test_where_the_base_itself_chose_the_same_it_is_a_tie() -> None:
    assert (
        compare_one(
            make_bare_output(1, 2), make_bare_output(1, 3), again=make_bare_output(1, 3)
        ).verdict
        is Verdict.NEAR_TIE
    )
    for again in (
        make_bare_output(1, 4),
        make_bare_output(4, 3),
        make_bare_output(1, 2),
        make_bare_output(1),
        TokenOutput((1, 3), error="lost"),
    ):
        assert (
            compare_one(make_bare_output(1, 2), make_bare_output(1, 3), again=again).verdict
            is Verdict.CANNOT_TELL
        )
    assert (
        compare_one(make_bare_output(1, 2), make_bare_output(1), again=make_bare_output(1)).verdict
        is Verdict.NEAR_TIE
    )


def test_an_answer_that_stops_early_differs_at_its_end() -> None:
    short = TokenOutput(TOKENS[:2], (-0.05, -0.05), (3.0, 3.0))
    comparison = compare_one(make_output(), short)
    assert (comparison.verdict, comparison.items["a"].position) == (Verdict.DIFFERS, 2)
    assert compare_one(make_tie(2), short).verdict is Verdict.NEAR_TIE
    # The candidate continues: the base's margin at its end is unknown.
    assert compare_one(short, make_output()).verdict is Verdict.DIFFERS
    assert compare_one(short, make_tie(2)).verdict is Verdict.CANNOT_TELL
    assert compare_one(make_output(), make_output((), (), ())).verdict is Verdict.DIFFERS


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
    broken = make_output(logprobs=(-0.05, -0.05, bad, -0.05))
    for base, candidate in ((make_output(), broken), (broken, make_output()), (broken, broken)):
        comparison = compare_one(base, candidate, again=make_output())
        assert comparison.verdict is Verdict.DIFFERS
        assert "at 2 the" in str(comparison)
        assert "no number" in str(comparison)
    # In the repeat it is not noise.
    comparison = compare_one(make_output(), make_output((5, 6, 9, 8)), again=broken)
    assert comparison.verdict is Verdict.DIFFERS
    assert comparison.noise == BaseNoise(EPS, EPS, 0, 0, 1, MIN_MARGIN_NOISE["float32"])


def test_a_margin_may_be_infinite_but_is_a_number() -> None:
    alone = make_output(margins=(3.0, math.inf, 3.0, 3.0))
    assert compare_one(alone, alone).verdict is Verdict.EQUAL
    assert compare_one(alone, make_output((5, 9, 7, 8))).verdict is Verdict.DIFFERS
    assert (
        compare_one(make_output(), make_output(margins=(3.0, math.nan, 3.0, 3.0))).verdict
        is Verdict.DIFFERS
    )
    candidate = make_tie(1, 0.0, token=9)  # beyond the first difference, too
    broken = TokenOutput(candidate.tokens, (-0.05, -0.7, -0.05, math.nan), candidate.margins)
    assert compare_one(make_tie(1), broken).verdict is Verdict.DIFFERS


def test_a_base_that_does_not_repeat_itself_measures_nothing() -> None:
    again = make_output((5, 6, 9, 8))  # sure of another token
    for candidate in (make_output(), make_output((5, 6, 9, 8)), make_output((4, 4, 4, 4))):
        comparison = compare_one(make_output(), candidate, again)
        assert comparison.noise.largest > MAX_NOISE
        assert comparison.verdict is Verdict.CANNOT_TELL
        assert "from itself" in str(comparison)
    nan = make_output(logprobs=(math.nan,) * 4)
    assert compare_one(make_output(), nan, again).verdict is Verdict.DIFFERS


def test_no_items_or_an_unknown_data_type_are_refused() -> None:
    with pytest.raises(UnfixError, match="no items"):
        compare_outputs({}, {"a": make_output()}, {})
    with pytest.raises(UnfixError, match="no data type int4: one of float32"):
        compare_outputs({"a": make_output()}, {}, {"a": make_output()}, dtype="int4")


def test_a_missing_item_is_named_and_never_equal() -> None:
    base, candidate = (
        {"a": make_output(), "b": make_output()},
        {"a": make_output(), "c": make_output()},
    )
    comparison = compare_outputs(base, {}, candidate, dtype="float32")
    assert comparison.verdict is Verdict.CANNOT_TELL
    assert comparison.missing == {"b": "candidate", "c": "base"}
    assert str(comparison) == "cannot-tell: 1 equal, 2 missing"


@pytest.mark.parametrize("side", ["base", "candidate"])
def test_an_error_is_kept_and_never_equal(side: str) -> None:
    failed = {"a": make_output(), "b": TokenOutput((), error="HTTP 500")}
    fine = {"a": make_output(), "b": make_output((), (), ())}
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
    other = {"a": TokenOutput((), error="x"), "b": make_output((1, 2, 3, 4))}
    comparison = compare_outputs({"a": make_output(), "b": make_output()}, {}, other)
    assert comparison.verdict is Verdict.DIFFERS


def test_the_worst_item_is_the_verdict() -> None:
    base = {
        "tie": make_tie(2),
        "same": make_output(),
        "drift": make_output(),
        "sure": make_output(),
    }
    drift = make_output(logprobs=(-0.9, -0.05, -0.05, -0.05))
    candidate = {"tie": make_tie(2, token=9), "same": make_output(), "drift": drift}
    candidate["sure"] = make_output((5, 1, 7, 8))
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
