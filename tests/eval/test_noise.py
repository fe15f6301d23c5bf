"""Noise and float32 against a difference: noise is never called a bug, nor a bug noise."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from outputs import compare_one, make_output

from harness.core.outcomes import Verdict
from harness.runs.eval.token_divergence import (
    MIN_LOGPROB_NOISE,
    MIN_MARGIN_NOISE,
    TokenOutput,
    compare_outputs,
)

EPS = MIN_LOGPROB_NOISE["float32"]


def simulate_engine(
    seed: int, shift: float, noisy: random.Random | None, size: float
) -> TokenOutput:
    """Simulate eight steps of a greedy decoder over 20 tokens; the prefix decides the logits."""
    tokens: list[int] = []
    logprobs, margins = [], []
    for at in range(8):
        chance = random.Random(f"{seed} {tokens}")
        logits = [chance.gauss(0, 2) for _ in range(20)]
        if noisy is not None:
            logits = [logit + noisy.uniform(-size, size) for logit in logits]
        if at == 4:
            logits[0] += shift
        total = math.log(sum(math.exp(logit) for logit in logits))
        order = sorted(range(20), key=lambda token: -logits[token])
        tokens.append(order[0])
        logprobs.append(logits[order[0]] - total)
        margins.append(logits[order[0]] - logits[order[1]])
    return TokenOutput(tokens, logprobs, margins)


def test_noise_is_never_called_a_bug_and_a_bug_never_noise() -> None:
    ties = 0
    for trial in range(20):
        base, again, fair, faulty = (
            {
                str(seed): simulate_engine(seed, shift, random.Random(f"{side}{seed}{trial}"), 0.02)
                for seed in range(100 * trial, 100 * trial + 40)
            }
            for side, shift in (("base", 0.0), ("again", 0.0), ("fair", 0.0), ("faulty", 3.0))
        )
        comparison = compare_outputs(base, again, fair, dtype="float32")
        assert comparison.verdict in (Verdict.EQUAL, Verdict.NEAR_TIE)
        ties += comparison.counts[Verdict.NEAR_TIE]
        assert compare_outputs(base, again, faulty, dtype="float32").verdict is Verdict.DIFFERS
    assert ties > 5


def test_a_lead_that_shrinks_is_a_drift_though_no_likelihood_moves() -> None:
    """A model that knows its answer gives it a probability of one, despite any drift below."""
    less = (3.0, 2.9, 3.0, 3.0)
    comparison = compare_one(make_output(), make_output(margins=less))
    assert comparison.verdict is Verdict.DRIFTS
    assert "its lead over the runner-up by 0.1" in str(comparison)
    near = make_output(margins=(3.0, 3.0 - MIN_MARGIN_NOISE["float32"], 3.0, 3.0))
    assert compare_one(make_output(), near).verdict is Verdict.EQUAL
    # An equal distance of the base from itself means noise; an unknown lead means nothing.
    assert (
        compare_one(
            make_output(), make_output(margins=less), again=make_output(margins=less)
        ).verdict
        is Verdict.EQUAL
    )
    assert compare_one(make_output(), make_output(margins=None)).verdict is Verdict.EQUAL


def make_shifted_output(by: float) -> TokenOutput:
    return make_output(margins=(3.0, 3.0 + by, 3.0, 3.0))


TRUTH = {"a": make_output(), "b": make_output()}
LOST = dict.fromkeys("ab", make_output(margins=(3.0, 9.0, 3.0, 3.0), error="500"))


# Shifts of the two items, in the least margin noise: the base's, the candidate's. The base's
# distance from float32 is the tolerance for rounding: in a mixture of experts, the repeat shows
# nothing, and one item in hundreds has moved.
@pytest.mark.parametrize(
    ("base", "candidate", "dtype", "options", "verdict"),
    [
        ((2.9, 0), (0, 2.9), "bfloat16", {}, Verdict.DRIFTS),
        ((2.9, 0), (0, 2.9), "bfloat16", {"float32_reference": TRUTH}, Verdict.EQUAL),
        ((2.9, 0), (0, 6.1), "bfloat16", {"float32_reference": TRUTH}, Verdict.DRIFTS),
        # A base that is wrong itself excuses nobody; nor does float32 a toggle; nor an error.
        ((40, 0), (0, 8.1), "bfloat16", {"float32_reference": TRUTH}, Verdict.DRIFTS),
        ((2.9, 0), (2.9, 0.6), "bfloat16",
         {"float32_reference": TRUTH, "same_but_toggles": True}, Verdict.DRIFTS),
        ((0, 0), (0, 2.9), "bfloat16", {"float32_reference": LOST}, Verdict.DRIFTS),
        *(((0, 0), (0, times + by), dtype, {"base_is_reference": True}, verdict)
          for dtype, times in (("bfloat16", 4.0), ("float32", 2.0))
          for by, verdict in ((-0.1, Verdict.EQUAL), (0.1, Verdict.DRIFTS))),
    ],
)  # fmt: skip
def test_float32_is_the_yardstick_of_rounding(
    base: tuple[float, float],
    candidate: tuple[float, float],
    dtype: str,
    options: dict[str, Any],
    verdict: Verdict,
) -> None:
    one, other = (
        {
            item: make_shifted_output(by * MIN_MARGIN_NOISE[dtype])
            for item, by in zip("ab", side, strict=True)
        }
        for side in (base, candidate)
    )
    assert compare_outputs(one, one, other, dtype=dtype, **options).items["b"].verdict is verdict
