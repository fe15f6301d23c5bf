# upstream: test/registered/unit/models/test_llama4_text_only_loader.py
"""A text-only Llama 4 loads its experts, and permutes queries and keys."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.models.llama4 import Llama4ForCausalLM
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

EXPERTS, HIDDEN, INTERMEDIATE = 2, 3, 4
EXPERT_NAME = "model.layers.0.feed_forward.experts.gate_up_proj"
QUERY_NAME = "model.layers.0.self_attn.q_proj.weight"


def load_expert(parameter, weight, name, shard_id, expert_id):
    first = {"w1": 0, "w3": INTERMEDIATE}[shard_id]
    parameter.data[expert_id, first : first + INTERMEDIATE] = weight


def load_query(parameter, weight, shard_id):
    parameter.data.copy_(weight)


def make_model():
    """Make a model of one layer with the parameters that are loaded here."""
    model = Llama4ForCausalLM.__new__(Llama4ForCausalLM)
    torch.nn.Module.__init__(model)
    model.quant_config = None
    model.config = SimpleNamespace(
        num_local_experts=EXPERTS,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        hidden_size=HIDDEN,
        tie_word_embeddings=False,
    )
    layer = torch.nn.Module()
    for path, name, shape, loader in (
        ("feed_forward.experts", "w13_weight", (EXPERTS, 2 * INTERMEDIATE, HIDDEN), load_expert),
        ("self_attn.qkv_proj", "weight", (4, HIDDEN), load_query),
    ):
        module = layer
        for part in path.split("."):
            setattr(module, part, torch.nn.Module())
            module = getattr(module, part)
        parameter = torch.nn.Parameter(torch.zeros(shape))
        parameter.weight_loader = loader
        setattr(module, name, parameter)
    model.model = torch.nn.Module()
    model.model.layers = torch.nn.ModuleList([layer])
    return model


class TestLlama4TextOnlyLoader(CustomTestCase):
    def test_experts_are_loaded(self):
        model = make_model()
        weight = torch.randn(EXPERTS, HIDDEN, 2 * INTERMEDIATE)
        model.load_weights([(EXPERT_NAME, weight)])
        loaded = model.model.layers[0].feed_forward.experts.w13_weight
        torch.testing.assert_close(loaded.data, weight.transpose(1, 2).contiguous())

    def test_rotated_pairs_of_a_head_are_neighbours(self):
        model = make_model()
        weight = torch.randn(4, HIDDEN)
        model.load_weights([(QUERY_NAME, weight)])
        loaded = model.model.layers[0].self_attn.qkv_proj.weight
        torch.testing.assert_close(loaded.data, weight[[0, 2, 1, 3]])


if __name__ == "__main__":
    unittest.main()
