# upstream: test/registered/unit/models/test_llama4_text_only_loader.py
"""A text-only Llama 4 loads its experts, and permutes queries and keys."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.models.llama4 import Llama4ForCausalLM
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

LAYER = "model.layers.0"
CONFIG = SimpleNamespace(
    num_local_experts=2, num_attention_heads=1, num_key_value_heads=1,
    head_dim=4, hidden_size=3, tie_word_embeddings=False,
)  # fmt: skip


def load_into(name, shape, loader, loaded_name, weight):
    """Load a tensor into a model that has one parameter; return the parameter."""
    module = model = Llama4ForCausalLM.__new__(Llama4ForCausalLM)
    torch.nn.Module.__init__(model)
    model.quant_config, model.config = None, CONFIG
    *path, last = f"{LAYER}.{name}".split(".")
    for part in path:
        module.add_module(part, torch.nn.Module())
        module = getattr(module, part)
    parameter = torch.nn.Parameter(torch.zeros(shape))
    parameter.weight_loader = loader
    module.register_parameter(last, parameter)
    model.load_weights([(f"{LAYER}.{loaded_name}", weight)])
    return parameter.data


class TestLlama4TextOnlyLoader(CustomTestCase):
    def test_experts_are_loaded(self):
        def load_half(parameter, weight, name, shard_id, expert_id):
            first = {"w1": 0, "w3": 4}[shard_id]
            parameter.data[expert_id, first : first + 4] = weight

        name, weight = "feed_forward.experts", torch.randn(2, 3, 8)
        loaded = load_into(
            f"{name}.w13_weight", (2, 8, 3), load_half, f"{name}.gate_up_proj", weight
        )
        torch.testing.assert_close(loaded, weight.transpose(1, 2).contiguous())

    def test_rotated_pairs_of_a_head_are_neighbours(self):
        def load(parameter, weight, shard_id):
            parameter.data.copy_(weight)

        name, weight = "self_attn", torch.randn(4, 3)
        loaded = load_into(f"{name}.qkv_proj.weight", (4, 3), load, f"{name}.q_proj.weight", weight)
        torch.testing.assert_close(loaded, weight[[0, 2, 1, 3]])


if __name__ == "__main__":
    unittest.main()
