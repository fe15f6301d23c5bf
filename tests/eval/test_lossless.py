"""Lossless comparisons: ties are not bugs, bugs are not ties, and missing data is never equal."""

from __future__ import annotations

import math

import pytest
from outputs import TOKENS, compare_one, make_output, make_tie

from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.runs.eval.token_divergence import (
    MIN_LOGPROB_NOISE,
    MIN_MARGIN_NOISE,
    BaseNoise,
    TokenOutput,
    compare_outputs,
    measure_noise,
)

EPS = MIN_LOGPROB_NOISE["float32"]


# A row: the base, a candidate, the base's repeat if it differs from the base, the verdict, words.
SHORT = TokenOutput(TOKENS[:2], (-0.05, -0.05), (3.0, 3.0))
NOTHING = make_output((), (), ())
OTHER = make_output((5, 6, 9, 8))
FLIPPED = make_tie(2, 0.0, token=9)
NAN = make_output(logprobs=(math.nan,) * 4)


def make_likely(*logprobs: float, tokens: tuple[int, ...] = TOKENS) -> TokenOutput:
    return make_output(tokens, logprobs)


def make_bare(*tokens: int) -> TokenOutput:
    return TokenOutput(tokens)


def without_margins(last: float, token: int) -> TokenOutput:
    return TokenOutput((1, token), (-0.1, last))


SURE = TokenOutput((5, 6, 9, 8), (-0.05, -0.05, -0.7, -0.05), (3.0, 3.0, 2.0, 3.0))
REPEAT = make_likely(-0.05, -0.06, -0.05, -0.05)
WIDE_REPEAT = TokenOutput(TOKENS, (-0.05, -0.05, -0.72, -0.05), make_tie(2, 0.03).margins)
INFINITE = make_output(margins=(3.0, math.inf, 3.0, 3.0))
EQUAL, DRIFTS, NEAR_TIE = Verdict.EQUAL, Verdict.DRIFTS, Verdict.NEAR_TIE
DIFFERS, CANNOT_TELL = Verdict.DIFFERS, Verdict.CANNOT_TELL
Row = tuple[TokenOutput, TokenOutput, TokenOutput | None, Verdict, str]
TABLE: dict[str, list[Row]] = {
    "the same is equal": [
        (make_output(), make_output(), None, EQUAL, "equal: 1 equal"),
        (NOTHING, NOTHING, None, EQUAL, ""),
    ],
    "logprobs within the noise are equal, and beyond it drift": [
        (make_output(), make_likely(-0.05, -0.05, -0.05, -0.069), REPEAT, EQUAL, ""),
        (make_output(), make_likely(-0.05, -0.05, -0.05, -0.071), REPEAT, DRIFTS,
         "at 3 by 0.021, noise 0.01"),
        (make_output(), make_likely(-0.05, -0.05, -0.05, -0.069), None, DRIFTS, ""),
    ],
    "a small shift everywhere drifts though the noise has larger peaks": [
        (make_output(), make_likely(*[-0.08] * 4), make_likely(-0.05, -0.09, -0.05, -0.05), DRIFTS,
         "on average"),
    ],
    "another token at a tie is a near tie, whatever follows": [
        (make_tie(2, EPS), make_tie(2, EPS, token=9), None, NEAR_TIE, ""),
        (make_tie(0), TokenOutput((9, 1, 1, 1), (-0.7, -9, -9, -9), (0, 9, 9, 9)), None,
         NEAR_TIE, ""),
        (make_tie(2, -3.0), make_tie(2, -3.0, token=9), None, DIFFERS, ""),  # not the best token
    ],
    "another token where a side was sure differs": [
        (make_output(), OTHER, None, DIFFERS, "at 2, where the base was sure by 3"),
        (make_tie(2, 1.9 * EPS), FLIPPED, None, NEAR_TIE, ""),
        (make_tie(2, 2.1 * EPS), FLIPPED, None, DIFFERS, ""),
        (make_tie(2), SURE, None, DIFFERS, "candidate was sure by 2"),
        (make_tie(2), TokenOutput(SURE.tokens, (-0.05, -0.05, -0.01, -0.05)), None, DIFFERS, ""),
        (make_tie(2), TokenOutput(SURE.tokens, (-0.05, -0.05, -4.0, -0.05)), None, DIFFERS,
         "token that was not near"),
    ],
    "a tie after a drift is a drift": [
        (make_tie(2), TokenOutput(FLIPPED.tokens, (-0.05, -0.5, -0.7, -0.05), FLIPPED.margins),
         None, DRIFTS, "at 1"),
    ],
    "a larger noise makes a wider tie": [
        (make_tie(2, 0.03), FLIPPED, None, DIFFERS, ""),
        (make_tie(2, 0.03), FLIPPED, WIDE_REPEAT, NEAR_TIE, ""),
    ],
    "tokens alone are equal or cannot be told": [
        (make_bare(1, 2), make_bare(1, 2), None, EQUAL, "by its tokens alone"),
        (make_bare(1, 2), make_bare(1, 3), None, CANNOT_TELL, "margin is not known"),
        (without_margins(-0.1, 2), without_margins(-0.1, 3), None, DIFFERS, ""),
        (without_margins(0.0, 2), without_margins(0.0, 3), None, DIFFERS, ""),
        (without_margins(-0.7, 2), without_margins(-0.7, 3), None, CANNOT_TELL, ""),
    ],
    "where the base itself chose the same it is a tie": [
        (make_bare(1, 2), make_bare(1, 3), make_bare(1, 3), NEAR_TIE, ""),
        (make_bare(1, 2), make_bare(1), make_bare(1), NEAR_TIE, ""),
        *((make_bare(1, 2), make_bare(1, 3), again, CANNOT_TELL, "") for again in (
            make_bare(1, 4), make_bare(4, 3), make_bare(1, 2), make_bare(1),
            TokenOutput((1, 3), error="lost"))),
    ],
    "an answer that stops early differs at its end": [
        (make_output(), SHORT, None, DIFFERS, "at 2"),
        (make_tie(2), SHORT, None, NEAR_TIE, ""),
        (SHORT, make_output(), None, DIFFERS, ""),
        (SHORT, make_tie(2), None, CANNOT_TELL, ""),  # the base's margin at its end is unknown
        (make_output(), NOTHING, None, DIFFERS, ""),
    ],
    "a margin may be infinite, but is a number": [
        (INFINITE, INFINITE, None, EQUAL, ""),
        (INFINITE, make_output((5, 9, 7, 8)), None, DIFFERS, ""),
        (make_output(), make_output(margins=(3.0, math.nan, 3.0, 3.0)), None, DIFFERS, ""),
        (make_tie(1), TokenOutput(make_tie(1, 0.0, token=9).tokens, (-0.05, -0.7, -0.05, math.nan),
                                  make_tie(1).margins), None, DIFFERS, ""),
    ],
    "a base that does not repeat itself measures nothing": [
        *((make_output(), one, OTHER, CANNOT_TELL, "from itself")
          for one in (make_output(), OTHER, make_output((4, 4, 4, 4)))),
        (make_output(), NAN, OTHER, DIFFERS, ""),
    ],
}  # fmt: skip


@pytest.mark.parametrize("claim", TABLE)
def test_a_verdict_of_two_outputs(claim: str) -> None:
    for base, candidate, again, verdict, words in TABLE[claim]:
        comparison = compare_one(base, candidate, again)
        assert comparison.verdict is verdict, (base, candidate)
        assert words in str(comparison)


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
    assert str(comparison) == "cannot tell: 1 equal, 2 missing"


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
