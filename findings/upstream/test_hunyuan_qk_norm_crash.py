# upstream: test/registered/unit/models/test_hunyuan_attention.py
"""HunYuan with use_qk_norm: attention gets one row of queries and keys for each token."""

import os
import unittest
from types import SimpleNamespace

import torch

os.environ["SGLANG_FORCE_FUSED_OP_BACKEND"] = (
    "torch"  # the layers lie on the CPU, also beside a GPU
)

from sglang.srt.models.hunyuan import HunYuanAttention
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 5, 4, 2, 32


class TestHunYuanAttention(CustomTestCase):
    def test_qk_norm_keeps_a_row_for_each_token(self):
        init_single_process_dist(master_port=0)
        torch.manual_seed(0)
        config = SimpleNamespace(
            hidden_size=HEADS * HEAD_DIM,
            num_attention_heads=HEADS,
            head_dim=HEAD_DIM,
            rms_norm_eps=1e-6,
            use_qk_norm=True,
        )
        attention = HunYuanAttention(config, config.hidden_size, HEADS, KV_HEADS)
        for parameter in attention.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        seen = {}

        class Attention(torch.nn.Module):
            def forward(self, q, k, v, forward_batch):
                seen.update(q=q.shape, k=k.shape, v=v.shape)
                return torch.zeros(TOKENS, HEADS * HEAD_DIM)

        attention.attn = Attention()
        hidden = torch.randn(TOKENS, config.hidden_size)
        attention(torch.arange(TOKENS), hidden, None)
        self.assertEqual(seen["v"], (TOKENS, KV_HEADS * HEAD_DIM))
        self.assertEqual(seen["q"], (TOKENS, HEADS * HEAD_DIM))
        self.assertEqual(seen["k"], seen["v"])


if __name__ == "__main__":
    unittest.main()
