"""Noise and float32 against a difference: noise is never called a bug, nor a bug noise."""

from __future__ import annotations

import math
import random

import pytest
from outputs import compare_one, make_output

from harness.runs.eval.token_divergence import (
    MIN_LOGPROB_NOISE,
    MIN_MARGIN_NOISE,
    TokenOutput,
    compare_outputs,
)
from harness.store.eval.values import ComparisonVerdict as Verdict

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


def test_the_distance_of_the_base_from_float32_is_the_tolerance_for_rounding() -> None:
    """In a mixture of experts, the repeat shows nothing, and one item in hundreds has moved."""
    least = MIN_MARGIN_NOISE["bfloat16"]
    base = {"a": make_shifted_output(2.9 * least), "b": make_output()}
    candidate = {"a": make_output(), "b": make_shifted_output(2.9 * least)}
    truth = {"a": make_output(), "b": make_output()}
    assert compare_outputs(base, base, candidate).verdict is Verdict.DRIFTS
    assert compare_outputs(base, base, candidate, float32_reference=truth).verdict is Verdict.EQUAL
    farther = {"a": make_output(), "b": make_shifted_output(6.1 * least)}
    assert compare_outputs(base, base, farther, float32_reference=truth).verdict is Verdict.DRIFTS


def test_a_base_that_is_wrong_itself_excuses_nobody() -> None:
    least = MIN_MARGIN_NOISE["bfloat16"]
    base = {"a": make_shifted_output(40 * least), "b": make_output()}
    candidate = {"a": make_output(), "b": make_shifted_output(8.1 * least)}
    truth = {"a": make_output(), "b": make_output()}
    comparison = compare_outputs(base, base, candidate, float32_reference=truth)
    assert comparison.items["b"].verdict is Verdict.DRIFTS


def test_where_only_a_toggle_is_between_two_float32_excuses_nothing() -> None:
    least = MIN_MARGIN_NOISE["bfloat16"]
    base = {"a": make_shifted_output(2.9 * least), "b": make_output()}
    candidate = {"a": make_shifted_output(2.9 * least), "b": make_shifted_output(0.6 * least)}
    truth = {"a": make_output(), "b": make_output()}
    comparison = compare_outputs(
        base, base, candidate, float32_reference=truth, same_but_toggles=True
    )
    assert comparison.verdict is Verdict.DRIFTS


@pytest.mark.parametrize(("dtype", "times"), [("bfloat16", 4.0), ("float32", 2.0)])
def test_a_float32_reference_widens_the_tolerance(dtype: str, times: float) -> None:
    least = MIN_MARGIN_NOISE[dtype]
    base = {"a": make_output(), "b": make_output()}
    for by, verdict in ((times - 0.1, Verdict.EQUAL), (times + 0.1, Verdict.DRIFTS)):
        candidate = {"a": make_output(), "b": make_shifted_output(by * least)}
        comparison = compare_outputs(base, {}, candidate, dtype=dtype, base_is_reference=True)
        assert comparison.verdict is verdict


def test_an_error_of_the_reference_says_nothing_of_rounding() -> None:
    base = {"a": make_output(), "b": make_output()}
    candidate = {"a": make_output(), "b": make_shifted_output(2.9 * MIN_MARGIN_NOISE["bfloat16"])}
    broken = make_output(margins=(3.0, 9.0, 3.0, 3.0), error="500")
    comparison = compare_outputs(
        base, base, candidate, float32_reference={"a": broken, "b": broken}
    )
    assert comparison.verdict is Verdict.DRIFTS
