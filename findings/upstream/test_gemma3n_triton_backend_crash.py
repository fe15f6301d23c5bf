# upstream: test/registered/unit/models/test_gemma3n_attention.py
"""Gemma 3n takes attention output of two or three dimensions."""

import os
import unittest

import torch

os.environ["SGLANG_FORCE_FUSED_OP_BACKEND"] = (
    "torch"  # the layers lie on the CPU, also beside a GPU
)

from sglang.srt.models.gemma3n_causal import (
    Gemma3nAttention,
    get_attention_sliding_window_size,
)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase
from transformers import Gemma3nTextConfig

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

TOKENS, HEADS, HEAD_DIM = 5, 4, 32


class Attention(torch.nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, q, k, v, **kwargs):
        return self.output


class TestGemma3nAttention(CustomTestCase):
    def make_attention(self):
        init_single_process_dist(master_port=0)
        torch.manual_seed(0)
        self.config = Gemma3nTextConfig(
            hidden_size=64,
            num_attention_heads=HEADS,
            num_key_value_heads=2,
            head_dim=HEAD_DIM,
            num_hidden_layers=2,
            num_kv_shared_layers=0,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=16,
        )
        attention = Gemma3nAttention(0, self.config, max_position_embeddings=64)
        for parameter in attention.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        return attention

    def test_output_of_three_dimensions(self):
        attention = self.make_attention()
        flat = torch.randn(TOKENS, HEADS * HEAD_DIM)
        expected, _ = attention.o_proj(flat)
        for attention_output in (flat, flat.view(TOKENS, HEADS, HEAD_DIM)):
            attention.attn = Attention(attention_output)
            output = attention(torch.randn(TOKENS, 64), torch.arange(TOKENS), None)
            torch.testing.assert_close(output, expected)

    def test_window_is_that_of_the_backend(self):
        window = self.make_attention().attn.sliding_window_size
        self.assertEqual(window, get_attention_sliding_window_size(self.config))


if __name__ == "__main__":
    unittest.main()
