# upstream: test/registered/unit/models/test_sliding_window_size.py
"""A sliding layer of Step-3.5 attends to as many tokens as its config says, the query included."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.configs.step3p5 import Step3p5Config
from sglang.srt.layers.layer_boundary import layer_stack
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.model_runner_components.load_model_utils import (
    resolve_sliding_window_size,
)
from sglang.srt.models.step3p5 import Step3p5DecoderLayer, Step3p5ForCausalLM
from sglang.srt.models.step3p7 import Step3p7ForConditionalGeneration
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

CONFIG = Step3p5Config(
    hidden_size=64,
    intermediate_size=64,
    num_attention_heads=2,
    num_attention_groups=2,
    num_hidden_layers=2,
    head_dim=32,
    rope_theta=[10000.0, 10000.0],
    partial_rotary_factors=[1.0, 1.0],
    layer_types=["sliding_attention", "full_attention"],
    attention_other_setting={"num_attention_heads": 2, "num_attention_groups": 2},
    sliding_window=16,
    moe_layers_enum="1",
    swiglu_limits_shared=None,
    use_head_wise_attn_gate=False,
)


def make_model(model_class):
    model = model_class.__new__(model_class)
    torch.nn.Module.__init__(model)
    model.config = CONFIG
    return model


class TestStep3p5Window(CustomTestCase):
    @classmethod
    def setUpClass(cls):
        init_single_process_dist(master_port=0)

    # A window of 16 tokens holds the query and 15 before it; backends count these 15.
    def test_layer(self):
        with layer_stack():
            layer = Step3p5DecoderLayer(CONFIG, layer_id=0)
        [window] = [
            module.sliding_window_size
            for module in layer.modules()
            if isinstance(module, RadixAttention)
        ]
        self.assertEqual(window, 15)

    def test_backend(self):
        config = SimpleNamespace(is_hybrid_swa=True, sliding_window_size=16)
        text = make_model(Step3p5ForCausalLM)
        self.assertEqual(resolve_sliding_window_size(text, config), 15)
        whole = make_model(Step3p7ForConditionalGeneration)
        whole.language_model = text
        self.assertEqual(resolve_sliding_window_size(whole, config), 15)


if __name__ == "__main__":
    unittest.main()
