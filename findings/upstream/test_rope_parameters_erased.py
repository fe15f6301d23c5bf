# upstream: test/registered/unit/configs/test_rope_parameters.py
"""Configs keep `rope_parameters` of a config.json as transformers 5 saves it."""

import unittest
from unittest.mock import patch

from sglang.srt.configs.longcat_flash import LongcatFlashConfig
from sglang.srt.configs.olmo3 import Olmo3Config
from sglang.srt.configs.qwen3_next import Qwen3NextConfig
from sglang.srt.configs.qwen3_omni import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
    Qwen3OmniMoeTalkerTextConfig,
    Qwen3OmniMoeTextConfig,
)
from sglang.srt.models import qwen3_next
from sglang.srt.models.olmo2 import Olmo2Attention
from sglang.srt.utils.hf_transformers_utils import get_rope_config
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

ROPE = {"rope_type": "default", "rope_theta": 500000.0}
YARN = {"rope_type": "yarn", "factor": 8.0}
CONFIGS = (
    LongcatFlashConfig,
    Olmo3Config,
    Qwen3NextConfig,
    Qwen3OmniMoeTalkerCodePredictorConfig,
    Qwen3OmniMoeTalkerTextConfig,
    Qwen3OmniMoeTextConfig,
)


class EndOfBuild(Exception):
    """Ends the construction of a layer."""


class TestRopeParameters(CustomTestCase):
    def test_new_key_is_kept(self):
        for config_class in CONFIGS:
            theta, _ = get_rope_config(config_class(rope_parameters=dict(ROPE)))
            self.assertEqual(theta, 500000.0, config_class.__name__)

    def test_old_keys_are_read_as_before(self):
        for config_class in CONFIGS:
            config = config_class(rope_theta=70000.0, rope_scaling=dict(YARN))
            theta, rope = get_rope_config(config)
            self.assertEqual(theta, 70000.0, config_class.__name__)
            self.assertEqual(rope["factor"], 8.0)
            plain = config_class(rope_theta=70000.0)
            self.assertEqual(get_rope_config(plain), (70000.0, None))

    def test_olmo3_rotates_with_the_base_of_each_layer(self):
        init_single_process_dist(master_port=0)
        layer_types = ["sliding_attention", "full_attention"]
        rope = {name: dict(ROPE) for name in layer_types}
        rope["full_attention"]["rope_theta"] = 700000.0
        for arguments, expected in (
            ({"rope_parameters": rope}, [500000.0, 700000.0]),
            ({"rope_theta": 60000.0}, [60000.0, 60000.0]),
        ):
            config = Olmo3Config(
                hidden_size=64,
                num_attention_heads=2,
                num_hidden_layers=2,
                layer_types=layer_types,
                **arguments,
            )
            layers = [Olmo2Attention(config, layer_id=i) for i in range(2)]
            self.assertEqual([layer.rotary_emb.base for layer in layers], expected)

    def test_qwen3_next_rotates_with_the_base(self):
        init_single_process_dist(master_port=0)
        config = Qwen3NextConfig(num_hidden_layers=1, rope_parameters=dict(ROPE))
        with patch.object(qwen3_next, "get_rope", side_effect=EndOfBuild) as get_rope:
            with self.assertRaises(EndOfBuild):
                qwen3_next.Qwen3HybridAttentionDecoderLayer(config, layer_id=0)
        self.assertEqual(get_rope.call_args.kwargs["base"], 500000.0)


if __name__ == "__main__":
    unittest.main()
