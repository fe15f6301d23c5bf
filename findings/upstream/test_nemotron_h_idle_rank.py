# upstream: test/registered/unit/models/test_nemotron_h_idle_rank.py
"""Nemotron-H: a layer of an idle rank hands its output to its boundary, as with tokens."""

import unittest
from types import SimpleNamespace

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.nemotron_h import NemotronHAttnLikeDecoderLayer
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class Boundary:
    """Gives back what no layer makes by itself."""

    def prepare(self, hidden_states, forward_batch):
        return hidden_states

    def finish(self, hidden_states, forward_batch):
        return "finished"


class TestNemotronHIdleRank(CustomTestCase):
    def test_an_idle_batch_is_finished_by_the_boundary(self):
        layer = NemotronHAttnLikeDecoderLayer()
        layer.boundary = Boundary()
        batch = SimpleNamespace(forward_mode=ForwardMode.IDLE)
        output = layer.forward(hidden_states=torch.empty(0, 8), forward_batch=batch)
        self.assertEqual(output, "finished")


if __name__ == "__main__":
    unittest.main()
