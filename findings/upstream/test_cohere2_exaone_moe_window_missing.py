# upstream: test/registered/unit/models/test_sliding_window_size.py
"""A model with sliding layers tells the backend its window, and its layers have the same one."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.model_runner_components.load_model_utils import (
    resolve_sliding_window_size,
)
from sglang.srt.models.cohere2_moe import Cohere2MoeAttention, Cohere2MoeForCausalLM
from sglang.srt.models.cohere2_vision import Cohere2VisionForConditionalGeneration
from sglang.srt.models.commandr import Cohere2ForCausalLM, CohereAttention
from sglang.srt.models.exaone_moe import ExaoneMoEAttention, ExaoneMoEForCausalLM
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase
from transformers import Cohere2Config

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

CONFIG = Cohere2Config(
    hidden_size=64,
    num_attention_heads=2,
    num_key_value_heads=2,
    num_hidden_layers=2,
    layer_types=["sliding_attention", "full_attention"],
    sliding_window=16,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
CONFIG.rope_theta = 10000.0
CONFIG.head_dim = 32
CONFIG.rms_norm_eps = 1e-6
MODEL_CONFIG = SimpleNamespace(is_hybrid_swa=False, attention_chunk_size=None)


def make_model(model_class):
    model = model_class.__new__(model_class)
    torch.nn.Module.__init__(model)
    model.config = CONFIG
    return model


def find_windows(attention):
    layers = [m for m in attention.modules() if isinstance(m, RadixAttention)]
    return [layer.sliding_window_size for layer in layers]


class TestSlidingWindowSize(CustomTestCase):
    @classmethod
    def setUpClass(cls):
        init_single_process_dist(master_port=0)

    # A window of 16 tokens holds the query and 15 before it; backends count these 15.
    def test_backend_is_told_the_window(self):
        for model_class in (
            Cohere2ForCausalLM,
            Cohere2MoeForCausalLM,
            ExaoneMoEForCausalLM,
        ):
            model = make_model(model_class)
            self.assertEqual(resolve_sliding_window_size(model, MODEL_CONFIG), 15)

    def test_backend_is_told_the_window_of_the_text_model(self):
        model = make_model(Cohere2VisionForConditionalGeneration)
        model.language_model = make_model(Cohere2MoeForCausalLM)
        self.assertEqual(resolve_sliding_window_size(model, MODEL_CONFIG), 15)

    def test_layers_have_the_same_window(self):
        exaone = ExaoneMoEAttention(
            CONFIG, 64, 2, 2, rope_theta=10000.0, max_position_embeddings=64
        )
        for attention in (
            CohereAttention(CONFIG, layer_id=0),
            Cohere2MoeAttention(CONFIG, layer_id=0),
            exaone,
        ):
            self.assertEqual(find_windows(attention), [15])


if __name__ == "__main__":
    unittest.main()
