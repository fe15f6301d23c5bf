# upstream: test/registered/unit/models/test_llama_block_scales.py
"""Llama loads the scales of block-quantized weights, and renames those of a whole matrix."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestLlamaBlockScales(CustomTestCase):
    def load_scale(self, weight_block_size, parameter_name):
        """Load a scale into a model with one layer that has one parameter."""
        model = LlamaForCausalLM.__new__(LlamaForCausalLM)
        torch.nn.Module.__init__(model)
        model.config = SimpleNamespace(tie_word_embeddings=False)
        model.quant_config = SimpleNamespace(weight_block_size=weight_block_size)
        model.model = torch.nn.Module()
        model.model.down_proj = torch.nn.Module()
        parameter = torch.nn.Parameter(torch.zeros(2, 2))
        setattr(model.model.down_proj, parameter_name, parameter)
        model.load_weights([("model.down_proj.weight_scale_inv", torch.ones(2, 2))])
        return parameter

    def test_scales_of_blocks(self):
        parameter = self.load_scale([128, 128], "weight_scale_inv")
        self.assertTrue(torch.equal(parameter, torch.ones(2, 2)))

    def test_scale_of_a_matrix(self):
        parameter = self.load_scale(None, "weight_scale")
        self.assertTrue(torch.equal(parameter, torch.ones(2, 2)))


if __name__ == "__main__":
    unittest.main()
