# upstream: test/registered/unit/lora
"""An adapter below the largest rank is multiplied by its own columns alone.

sgemm_lora_a leaves the further columns as torch.empty found them: here they are NaN. Triton's
interpreter runs the kernel on a CPU.
"""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.kernels.ops.lora.dense.trtllm_lora_temp import sgemm_lora_b
from sglang.test.ci.ci_register import register_cpu_ci
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

RANKS, WIDTH = (8, 16), 32


class TestLoraSmallRank(unittest.TestCase):
    def test_columns_beyond_the_rank_are_not_read(self):
        shrunk = torch.full((2, max(RANKS)), float("nan"))  # one token for each adapter
        weights = torch.zeros(2, WIDTH, max(RANKS))
        for adapter, rank in enumerate(RANKS):
            shrunk[adapter, :rank] = 1
            weights[adapter, :, :rank] = 1
        batch = SimpleNamespace(
            bs=2, max_len=1, seg_lens=torch.ones(2).int(), seg_indptr=torch.arange(3).int(),
            weight_indices=torch.arange(2).int(), lora_ranks=torch.tensor(RANKS).int(),
            scalings=torch.ones(2), permutation=None,
        )  # fmt: skip

        def call_device_function(self, *args, **options):
            return interpreter.InterpretedFunction(self.fn)(*args, **options)

        kernel = interpreter.InterpretedFunction(sgemm_lora_b._sgemm_lora_b_kernel.fn)
        with (
            mock.patch.object(sgemm_lora_b, "_sgemm_lora_b_kernel", kernel),
            mock.patch.object(sgemm_lora_b, "get_pdl_launch_metadata", lambda: (False, {})),
            mock.patch.object(JITFunction, "__call__", call_device_function),
        ):
            output = sgemm_lora_b.sgemm_lora_b_fwd(shrunk, weights, batch)
        self.assertEqual(output[:, 0].tolist(), [float(rank) for rank in RANKS])


if __name__ == "__main__":
    unittest.main()
