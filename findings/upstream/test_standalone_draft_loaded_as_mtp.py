# upstream: test/registered/unit/configs/test_standalone_draft_architecture.py
"""A draft of STANDALONE is a whole model: it keeps the architecture of its checkpoint."""

import tempfile
import unittest

from sglang.srt.configs.model_config import ModelConfig
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase
from transformers import Qwen3MoeConfig

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
}


class TestStandaloneDraftArchitecture(CustomTestCase):
    def find_architecture(self, **options):
        with tempfile.TemporaryDirectory() as folder:
            Qwen3MoeConfig(architectures=["Qwen3MoeForCausalLM"], **SIZES).save_pretrained(folder)
            config = ModelConfig(model_path=folder, dtype="bfloat16", **options)
        return config.hf_config.architectures[0]

    def test_standalone_draft_is_a_whole_model(self):
        own = self.find_architecture(is_draft_model=True, speculative_algorithm="STANDALONE")
        self.assertEqual(own, self.find_architecture())

    def test_other_drafts_are_mtp_heads(self):
        head = self.find_architecture(is_draft_model=True, speculative_algorithm="EAGLE")
        self.assertNotEqual(head, self.find_architecture())


if __name__ == "__main__":
    unittest.main()
