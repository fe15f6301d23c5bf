# upstream: test/registered/unit/models/test_phi_starcoder2_stages.py
"""Phi and Starcoder2: each rank of the one stage has all layers, whatever its rank in the world."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

from sglang.srt.models import phi, starcoder2
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestStages(CustomTestCase):
    def test_the_second_rank_has_the_layers_of_its_stage(self):
        config = SimpleNamespace(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=4,
            layer_norm_eps=1e-5,
            norm_epsilon=1e-5,
        )
        group = SimpleNamespace(world_size=1, rank=1, rank_in_group=0)
        for module, name in ((phi, "PhiModel"), (starcoder2, "Starcoder2Model")):
            with (
                self.subTest(name),
                patch.object(module, "get_parallel", return_value=SimpleNamespace(pp_group=group)),
                patch.object(module, "VocabParallelEmbedding"),
                patch.object(module, "make_layers"),
            ):
                model = getattr(module, name)(config)
                self.assertEqual((model.start_layer, model.end_layer), (0, 4))


if __name__ == "__main__":
    unittest.main()
