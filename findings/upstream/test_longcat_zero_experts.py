# upstream: test/registered/kernel/moe/test_longcat_zero_experts.py
"""LongCat-Flash: zero experts return their input times their scaled weight."""

import os
import unittest

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from sglang.srt.models.longcat_flash import LongcatFlashMoE
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")  # interpreted
register_cuda_ci(est_time=10, stage="base-b-kernel-unit", runner_config="1-gpu-large")

EXPERTS, TOKENS, SCALE = 4, 5, 6.0


def multiply_by_id(hidden_states, topk_output):
    """Stand in for the routed experts: expert i multiplies its input by i + 2."""
    factors = (topk_output.topk_ids + 2) * topk_output.topk_weights
    return hidden_states * factors.sum(dim=-1, keepdim=True)


class TestLongcatZeroExperts(CustomTestCase):
    def run_moe(self, hidden_size, ranks=1):
        """Return the sum of the ranks' outputs, and what it should be."""
        torch.manual_seed(0)
        hidden = torch.randn(TOKENS, hidden_size, device=DEVICE)
        weights = torch.rand(TOKENS, 3, device=DEVICE)
        ids = torch.randint(0, EXPERTS + 2, (TOKENS, 3), device=DEVICE)
        moe = LongcatFlashMoE.__new__(LongcatFlashMoE)
        torch.nn.Module.__init__(moe)
        moe.num_experts = EXPERTS
        moe.zero_expert_type = "identity"
        moe.routed_scaling_factor = SCALE
        moe.router = lambda hidden_states: None
        moe.topk = lambda hidden_states, logits: (weights.clone(), ids.clone(), None)
        moe.tp_size = ranks
        moe.experts = lambda *inputs: multiply_by_id(*inputs) / ranks

        factors = torch.where(ids < EXPERTS, ids + 2, 1) * weights * SCALE
        output = sum(moe(hidden.clone()) for _ in range(ranks))
        return output, hidden * factors.sum(dim=-1, keepdim=True)

    def test_zero_experts_are_scaled(self):
        torch.testing.assert_close(*self.run_moe(256))

    def test_ranks_add_up_their_outputs(self):
        torch.testing.assert_close(*self.run_moe(256, ranks=4))

    def test_hidden_size_that_256_does_not_divide(self):
        torch.testing.assert_close(*self.run_moe(320))


if __name__ == "__main__":
    unittest.main()
