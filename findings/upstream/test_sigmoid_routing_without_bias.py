# upstream: test/registered/kernel/moe/test_sigmoid_routing_without_bias.py
"""Sigmoid routing needs no correction bias (Cohere2-MoE)."""

import os
import unittest
from unittest.mock import patch

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from sglang.kernels.ops.moe import moe_fused_gate
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")  # interpreted
register_cuda_ci(est_time=10, stage="base-b-kernel-unit", runner_config="1-gpu-large")


class TestSigmoidRoutingWithoutBias(CustomTestCase):
    def test_experts_of_the_largest_logits(self):
        torch.manual_seed(0)
        logits = torch.randn(33, 12, device=DEVICE)
        with patch.object(moe_fused_gate, "is_arch_support_pdl", return_value=False):
            try:
                weights, ids = moe_fused_gate.moe_fused_gate(
                    logits, None, 2, scoring_func="sigmoid", renormalize=False
                )
            except AssertionError as error:
                self.fail(f"refused: {error}")
        expected = logits.sigmoid().topk(2, dim=-1)
        self.assertTrue(torch.equal(ids.long(), expected.indices))
        torch.testing.assert_close(weights, expected.values, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
