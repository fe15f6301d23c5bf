# upstream: test/registered/unit/models/test_exaone_rope_theta.py
"""EXAONE-4 and EXAONE-MoE rotate with the base of their config."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

from sglang.srt.models import exaone4, exaone_moe
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

ROPE = {"rope_type": "default", "rope_theta": 20000.0}


class EndOfBuild(Exception):
    """Ends the construction of a layer."""


class TestExaoneRopeTheta(CustomTestCase):
    def find_theta(self, module, layer, attention, rope):
        """Return the base with which a layer builds its attention."""
        config = SimpleNamespace(
            hidden_size=64, num_attention_heads=2, num_key_value_heads=2, **rope
        )
        with patch.object(module, attention, side_effect=EndOfBuild) as builder:
            with self.assertRaises(EndOfBuild):
                getattr(module, layer)(config, layer_id=0)
        return builder.call_args.kwargs["rope_theta"]

    def test_base_of_the_config(self):
        for names in (
            (exaone4, "Exaone4DecoderLayer", "Exaone4Attention"),
            (exaone_moe, "ExaoneMoEDecoderLayer", "ExaoneMoEAttention"),
        ):
            for rope, expected in (
                ({"rope_parameters": ROPE, "rope_scaling": ROPE}, 20000.0),
                ({"rope_theta": 30000.0, "rope_scaling": None}, 30000.0),
                ({}, 1000000),
            ):
                self.assertEqual(self.find_theta(*names, rope), expected)


if __name__ == "__main__":
    unittest.main()
