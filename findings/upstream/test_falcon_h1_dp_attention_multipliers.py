# upstream: test/registered/unit/models/test_falcon_h1_multipliers.py
"""Falcon-H1 with DP attention: multipliers for each column of a rank's Mamba projection."""

import unittest
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

from sglang.srt.configs.falcon_h1 import FalconH1Config
from sglang.srt.models import falcon_h1
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

PARTS = (
    "QKVParallelLinear", "RowParallelLinear", "RadixAttention", "FalconH1MLP", "RMSNorm",
    "get_rope", "declare_attn", "declare_ffn", "OutputTransform",
)  # fmt: skip


class TestFalconH1Multipliers(CustomTestCase):
    def test_they_have_the_width_of_the_attention_group(self):
        config = FalconH1Config(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            rope_parameters={"rope_theta": 1e4}, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16,
            mamba_n_groups=1, mamba_d_state=16,
        )  # fmt: skip
        ranks = SimpleNamespace(tp_size=2, attn_tp_size=1, attn_tp_rank=0)  # dp_size 2
        with ExitStack() as stack:
            patches = [patch.object(falcon_h1, name) for name in PARTS]
            patches += [
                patch.object(falcon_h1, "get_parallel", return_value=ranks),
                patch.object(FalconH1Config, "mamba2_cache_params", None),
                patch.object(falcon_h1, "MambaMixer2", return_value=MagicMock(n_groups=1)),
                patch.object(falcon_h1, "append_stages", return_value=(None, None)),
            ]
            for one in patches:
                stack.enter_context(one)
            layer = falcon_h1.FalconH1HybridAttentionDecoderLayer(config, 0)
        self.assertEqual(layer.mup_vector.shape[1], 2 * 64 + 2 * 16 + 4)


if __name__ == "__main__":
    unittest.main()
