# upstream: test/registered/unit/models/test_config_sizes.py
"""Sizes of the configuration that differ from those of the published models are used."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch
from sglang.srt.models import minicpm3, ministral3, qwen3_5
from sglang.srt.models.phi import PhiMLP
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase
from transformers import PhiConfig

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class EndOfBuild(Exception):
    """Ends the construction of a layer."""


def make_config(**keys):
    return SimpleNamespace(
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=1,
        **keys,
    )


def make_module(self, **arguments):
    torch.nn.Module.__init__(self)
    self.hidden_size = arguments["config"].hidden_size


class TestConfigSizes(CustomTestCase):
    @classmethod
    def setUpClass(cls):
        init_single_process_dist(master_port=0)

    def find_arguments(self, module, layer, builder, config):
        """Return the arguments with which a layer calls a builder of its module."""
        with patch.object(module, builder, side_effect=EndOfBuild) as built:
            with self.assertRaises(EndOfBuild):
                getattr(module, layer)(config, layer_id=0)
        return built.call_args.kwargs

    def test_phi_intermediate_size(self):
        config = PhiConfig(hidden_size=16, intermediate_size=24)
        self.assertEqual(PhiMLP(config).fc1.weight.shape, (24, 16))

    def test_minicpm3_v_head_dim(self):
        config = make_config(
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            q_lora_rank=8,
            kv_lora_rank=8,
            v_head_dim=48,
        )
        names = (minicpm3, "MiniCPM3DecoderLayer", "MiniCPM3AttentionMLA")
        self.assertEqual(self.find_arguments(*names, config)["v_head_dim"], 48)

    def test_ministral3_original_max_position_embeddings(self):
        rope = {"rope_theta": 1e6, "original_max_position_embeddings": 32}
        config = make_config(rope_parameters=rope)
        names = (ministral3, "Ministral3DecoderLayer", "Ministral3Attention")
        with patch.object(ministral3.LlamaDecoderLayer, "__init__", make_module):
            arguments = self.find_arguments(*names, config)
        self.assertEqual(arguments["max_position_embeddings"], 32)

    def test_qwen3_5_partial_rotary_factor(self):
        rope = {"rope_theta": 1e6, "partial_rotary_factor": 0.5}
        config = make_config(
            head_dim=32,
            full_attention_interval=2,
            rope_parameters=rope,
            partial_rotary_factor=0.25,
        )
        names = (qwen3_5, "Qwen3_5AttentionDecoderLayer", "get_rope")
        arguments = self.find_arguments(*names, config)
        self.assertEqual(arguments["partial_rotary_factor"], 0.5)


if __name__ == "__main__":
    unittest.main()
