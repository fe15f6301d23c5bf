# upstream: test/registered/kernel/moe/test_softmax_correction_bias.py
"""Softmax routing with a correction bias: the bias chooses experts, and does not weigh them."""

import os
import unittest
from unittest.mock import patch

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from sglang.kernels.ops.moe import moe_fused_gate
from sglang.srt.layers.moe import topk as topk_module
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")  # interpreted
register_cuda_ci(est_time=10, stage="base-b-kernel-unit", runner_config="1-gpu-large")


class TestSoftmaxCorrectionBias(CustomTestCase):
    def route(self, logits, bias):
        hidden = torch.zeros(logits.shape[0], 16, device=DEVICE)
        with (
            patch.object(topk_module, "_is_cuda", True),
            patch.object(moe_fused_gate, "is_arch_support_pdl", return_value=False),
        ):
            weights, ids = topk_module.fused_topk(
                hidden, logits, topk=2, renormalize=True, correction_bias=bias
            )
        order = ids.argsort(dim=-1)
        return ids.gather(1, order), weights.gather(1, order)

    def test_bias_chooses_and_does_not_weigh(self):
        torch.manual_seed(0)
        logits = torch.randn(33, 12, device=DEVICE)
        bias = torch.randn(12, device=DEVICE)
        probabilities = logits.softmax(dim=-1)
        for correction_bias in (None, bias):
            scores = probabilities if correction_bias is None else probabilities + bias
            expected_ids = scores.topk(2, dim=-1).indices.sort(dim=-1).values
            expected = probabilities.gather(1, expected_ids)
            expected = expected / expected.sum(dim=-1, keepdim=True)

            ids, weights = self.route(logits, correction_bias)

            self.assertTrue(torch.equal(ids.long(), expected_ids))
            torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
