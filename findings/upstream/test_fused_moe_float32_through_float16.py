# upstream: test/registered/unit/layers/moe/test_fused_moe_compute_type.py
"""The fused MoE kernel writes its products in the dtype of the model."""

import unittest
from unittest.mock import patch

import torch
import triton.language as tl
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class EndOfLaunch(Exception):
    """Ends the sequence at its first kernel."""


def launch_first_kernel(dtype):
    tensors = [torch.zeros(size, dtype=dtype) for size in ((3, 8), (2, 8, 8), (2, 8, 4))]
    ids = torch.zeros(3, 1, dtype=torch.int32)
    scales = dict.fromkeys(("w1_scale", "w2_scale", "w1_zp", "w2_zp"))
    kinds = ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16")
    fused_moe._fused_moe_kernel_sequence(
        *tensors,
        *(torch.ones(3, 1), ids, ids, ids, ids),
        config={"BLOCK_SIZE_M": 16},
        down_config=None,
        down_moe_use_tma=False,
        up_moe_use_tma=False,
        b1=None,
        b2=None,
        **dict.fromkeys(kinds, False),
        per_channel_quant=False,
        **scales,
        a1_scale=None,
        a2_scale=None,
        block_shape=None,
        activation="silu",
        is_gated=True,
        no_combine=True,
        inplace=False,
        apply_router_weight_on_input=False,
        routed_scaling_factor=None,
        gemm1_alpha=None,
        gemm1_limit=None,
        filter_expert=False,
    )


class TestFusedMoeComputeType(CustomTestCase):
    def test_dtype_of_the_model(self):
        init_single_process_dist(master_port=0)
        for dtype, expected in (
            (torch.bfloat16, tl.bfloat16),
            (torch.float16, tl.float16),
            (torch.float32, tl.float32),
        ):
            with patch.object(
                fused_moe, "invoke_fused_moe_kernel", side_effect=EndOfLaunch
            ) as kernel:
                with self.assertRaises(EndOfLaunch):
                    launch_first_kernel(dtype)
            self.assertEqual(kernel.call_args.kwargs["compute_type"], expected)


if __name__ == "__main__":
    unittest.main()
