# upstream: test/registered/unit/models/test_granitemoehybrid_final_norm.py
"""Granite 4 hybrid: a layer adds its residual itself, so the final norm gets the sum alone."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.models.granitemoehybrid import GraniteMoeHybridModel
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class Norm(torch.nn.Module):
    """Add a residual that is given, and double the sum."""

    def forward(self, hidden_states, residual=None):
        if residual is None:
            return 2 * hidden_states
        return 2 * (hidden_states + residual), residual


class TestGraniteMoeHybridFinalNorm(CustomTestCase):
    def test_final_norm_gets_the_sum_alone(self):
        model = GraniteMoeHybridModel.__new__(GraniteMoeHybridModel)
        torch.nn.Module.__init__(model)
        model.pp_group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
        model.start_layer, model.end_layer = 0, 1
        model.layers_to_capture = []
        model.embedding_multiplier = 1.0
        model.norm = Norm()
        hidden = torch.randn(3, 4)
        model.layers = [lambda positions, h, residual, batch: (h + 1, h)]
        output = model(None, None, inputs_embeds=hidden)
        torch.testing.assert_close(output, 2 * (hidden + 1))


if __name__ == "__main__":
    unittest.main()
