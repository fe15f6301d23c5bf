# upstream: test/registered/unit/utils/test_gemma4_text_config.py
"""A text-only Gemma 4 configuration is read, with one shape for full and one for sliding layers."""

import tempfile
import unittest

from sglang.srt.utils.hf_transformers_utils import get_config
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase
from transformers import Gemma4TextConfig

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestGemma4TextConfig(CustomTestCase):
    def read_config(self, **sizes):
        config = Gemma4TextConfig(
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            layer_types=["sliding_attention", "full_attention"],
            architectures=["Gemma4ForCausalLM"],
            **sizes,
        )
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            return get_config(folder, trust_remote_code=False)

    def test_two_head_sizes(self):
        config = self.read_config(global_head_dim=64)
        self.assertEqual((config.head_dim, config.swa_head_dim), (64, 32))
        self.assertEqual(config.num_key_value_heads, 2)

    def test_one_head_size(self):
        config = self.read_config(global_head_dim=32)
        sizes = (config.head_dim, getattr(config, "swa_head_dim", None))
        self.assertEqual(sizes, (32, 32))


if __name__ == "__main__":
    unittest.main()
