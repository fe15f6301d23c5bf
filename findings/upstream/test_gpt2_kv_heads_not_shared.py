# upstream: test/registered/unit/models/test_gpt2_attention.py
"""GPT-2 on two ranks: attention has a rank's share of the key heads."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

from sglang.srt.models import gpt2
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestGPT2Attention(CustomTestCase):
    def test_a_rank_has_its_share_of_the_key_heads(self):
        config = SimpleNamespace(hidden_size=64, num_attention_heads=4)
        with (
            patch.object(gpt2, "get_parallel", return_value=SimpleNamespace(tp_size=2)),
            patch.object(gpt2, "QKVParallelLinear"),
            patch.object(gpt2, "RowParallelLinear"),
        ):
            attention = gpt2.GPT2Attention(0, config).attn
        self.assertEqual(attention.tp_q_head_num, 2)
        self.assertEqual(attention.tp_k_head_num, 2)
        self.assertEqual(attention.tp_v_head_num, 2)


if __name__ == "__main__":
    unittest.main()
