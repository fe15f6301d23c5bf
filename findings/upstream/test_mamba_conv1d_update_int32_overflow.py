# upstream: test/registered/kernels/mamba
"""causal_conv1d_update finds the state of a slot behind 2^32 elements. Takes 13 GB of a card."""

import unittest

import torch
from sglang.kernels.ops.mamba.causal_conv1d import causal_conv1d_update
from sglang.test.ci.ci_register import register_cuda_ci

register_cuda_ci(est_time=30, suite="stage-b-test-1-gpu-large")

CHANNELS, WIDTH = 8, 4


class TestMambaConv1dUpdate(unittest.TestCase):
    def test_a_far_slot(self):
        size = CHANNELS * (WIDTH - 1)
        # The states of other layers lie behind a slot's own, as in a pool of all layers.
        pool = torch.empty(3, size + (1 << 31), dtype=torch.bfloat16, device="cuda")
        pool[:, :size] = 0
        states = pool[:, :size].view(3, CHANNELS, WIDTH - 1)
        token = torch.arange(1, CHANNELS + 1, device="cuda").bfloat16().view(1, CHANNELS, 1)
        before = token.clone()
        weight = torch.zeros(CHANNELS, WIDTH, dtype=torch.bfloat16, device="cuda")
        weight[:, -1] = 1  # a token's own tap
        slots = torch.tensor([2], dtype=torch.int32, device="cuda")
        causal_conv1d_update(token, states, weight, None, False, None, slots, -1)
        self.assertFalse(states[0].any().item(), "the state of slot 0 was written")
        self.assertEqual(states[2, :, -1].tolist(), before.view(-1).tolist())


if __name__ == "__main__":
    unittest.main()
