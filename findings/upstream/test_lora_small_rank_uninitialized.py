# upstream: test/registered/unit/lora
"""An adapter below the largest rank is multiplied by its own columns alone.

sgemm_lora_a leaves the further columns as torch.empty found them: here they are NaN. Triton's
interpreter runs the kernel on a CPU.
"""

import importlib
import importlib.util
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.test.ci.ci_register import register_cpu_ci
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

ops = "sglang.kernels.ops."
moved = importlib.util.find_spec(ops + "lora") is not None
module = importlib.import_module(
    ops + ("lora.dense" if moved else "gemm") + ".trtllm_lora_temp.sgemm_lora_b"
)
RANKS, WIDTH = (8, 16), 32


class TestLoraSmallRank(unittest.TestCase):
    def test_columns_beyond_the_rank_are_not_read(self):
        tokens = torch.tensor([0, 1])  # one token for each adapter
        shrunk = torch.full((2, max(RANKS)), float("nan"))
        weights = torch.zeros(2, WIDTH, max(RANKS))
        for adapter, rank in enumerate(RANKS):
            shrunk[adapter, :rank] = 1
            weights[adapter, :, :rank] = 1
        batch = SimpleNamespace(
            bs=2,
            max_len=1,
            seg_lens=torch.ones(2, dtype=torch.int32),
            seg_indptr=torch.tensor([0, 1, 2], dtype=torch.int32),
            weight_indices=tokens.int(),
            lora_ranks=torch.tensor(RANKS, dtype=torch.int32),
            scalings=torch.ones(2),
            permutation=None,
        )

        def call_device_function(self, *args, **options):
            return interpreter.InterpretedFunction(self.fn)(*args, **options)

        kernel = interpreter.InterpretedFunction(module._sgemm_lora_b_kernel.fn)
        with (
            mock.patch.object(module, "_sgemm_lora_b_kernel", kernel),
            mock.patch.object(module, "get_pdl_launch_metadata", lambda: (False, {})),
            mock.patch.object(JITFunction, "__call__", call_device_function),
        ):
            output = module.sgemm_lora_b_fwd(shrunk, weights, batch)
        self.assertEqual(output[:, 0].tolist(), [float(rank) for rank in RANKS])


if __name__ == "__main__":
    unittest.main()
