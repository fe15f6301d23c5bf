"""Stand-ins that choose experts: what a bias moves, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from harness.sanitizer.plugins.for_sglang.operators.experts import (
    topk_sigmoid,
    topk_softmax,
)


def choose_experts(
    operator: Any, logits: list[float], bias: list[float]
) -> tuple[list[int], list[float]]:
    weights, ids = torch.empty(1, 1), torch.empty(1, 1, dtype=torch.int32)
    arguments = {"renormalize": True, "correction_bias": torch.tensor(bias)}
    operator(weights, ids, torch.tensor([logits]), **arguments)
    return ids[0].tolist(), weights[0].tolist()


def test_a_softmax_with_a_bias_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="no bias"):
        choose_experts(topk_softmax, [0.0, 0.0], [1.0, 3.0])


def test_a_score_that_its_bias_rounds_away_has_no_weight() -> None:
    """As on a card: `(score + bias) - bias` is 0, and so is the sum that it is divided by."""
    assert choose_experts(topk_sigmoid, [-20.0, 0.0], [0.0, 0.0]) == ([1], [1.0])
    ids, (weight,) = choose_experts(topk_sigmoid, [-20.0, 0.0], [1.0, 0.0])
    assert ids == [0]
    assert math.isnan(weight)
