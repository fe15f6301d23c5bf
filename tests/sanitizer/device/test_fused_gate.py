"""Stand-ins that choose experts: groups, scaling, shared experts, and what a bias moves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from harness.sanitizer.plugins.for_sglang.operators.experts import (
    moe_fused_gate,
    topk_sigmoid,
    topk_softmax,
)


def test_experts_outside_of_the_best_group_are_not_chosen() -> None:
    logits = torch.tensor([[5.0, -5.0, 2.0, 2.0]])  # groups: 5 alone, or 2 twice
    weights, ids = moe_fused_gate(logits, torch.zeros(4), 2, 1, 2)
    assert sorted(ids[0].tolist()) == [2, 3]
    assert weights[0].tolist() == pytest.approx([0.5, 0.5])


def test_a_bias_moves_the_choice_and_not_the_weight() -> None:
    logits, bias = torch.tensor([[1.0, 2.0, 3.0, 0.0]]), torch.tensor([9.0, 0.0, 0.0, 0.0])
    weights, ids = moe_fused_gate(logits, bias, 1, 1, 1)
    assert ids.tolist() == [[0]]
    assert weights.tolist() == [[pytest.approx(1.0)]]


@pytest.mark.parametrize(("applied", "routed_sum", "shared"), [(True, 2.5, 1.0), (False, 1, 0.4)])
def test_a_shared_expert_counts_once_in_the_end(
    applied: bool, routed_sum: float, shared: float
) -> None:
    logits = torch.randn(7, 8, generator=torch.Generator().manual_seed(1))
    weights, ids = moe_fused_gate(logits, torch.zeros(8), 2, 1, 3, 1, 2.5, applied)
    assert ids[:, -1].tolist() == [8] * 7
    assert int(ids[:, :-1].max()) < 8
    assert weights[:, :-1].sum(-1).tolist() == pytest.approx([routed_sum] * 7)
    assert weights[:, -1].tolist() == pytest.approx([shared] * 7)


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
