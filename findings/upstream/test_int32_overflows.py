# upstream: test/registered/kernels
"""CUDA kernels find rows behind 2^31 elements. Takes 5 GB of a card at once."""

import gc
import unittest

import torch
from sglang.kernels.ops.attention.fixup_zero_kv import fixup_zero_kv_rows
from sglang.kernels.ops.attention.fused_qknorm_rope import fused_qk_norm_rope
from sglang.kernels.ops.mamba.inkling_sconv import causal_conv1d
from sglang.kernels.ops.speculative.tree import build_tree_kernel_efficient
from sglang.test.ci.ci_register import register_cuda_ci

register_cuda_ci(est_time=60, suite="stage-b-test-1-gpu-large")

ROWS = 33
FAR = 1 << 26  # elements between two rows: the last row is behind 2^31


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def make_rows(width, dtype):
    """Return rows far from each other; what lies between them is never used."""
    rows = torch.empty(ROWS, width + FAR, dtype=dtype, device="cuda")
    rows[:, :width] = 0
    return rows


class LargeCase(unittest.TestCase):
    def tearDown(self):
        gc.collect()
        torch.cuda.empty_cache()


class TestQkNormOverflow(LargeCase):
    def test_qk_norm_of_wide_tokens(self):
        head = 64
        values = FAR // head
        fused = torch.empty(ROWS, (2 + values) * head, dtype=torch.bfloat16, device="cuda")
        rows = torch.arange(1, 2 * head + 1, device="cuda").bfloat16().repeat(ROWS, 1)
        fused[:, : 2 * head] = rows
        weight = torch.ones(head, dtype=torch.bfloat16, device="cuda")
        fused_qk_norm_rope(
            fused, 1, 1, values, head, 1e-6, weight, weight, 1e4, True,
            ints(*[0] * ROWS), 1.0, 1.0, 1.0, 1.0,
        )  # fmt: skip
        heads = rows.float().view(ROWS, 2, head)
        expected = heads * heads.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()
        found = fused[:, : 2 * head].float().view(ROWS, 2, head)
        self.assertLess((found - expected).abs().max().item(), 0.05)


class TestInklingConvolutionOverflow(LargeCase):
    def test_inkling_convolution_of_wide_rows(self):
        wide = make_rows(8, torch.bfloat16)
        tokens = wide[:, :8]
        tokens.copy_(torch.arange(8 * ROWS, device="cuda").view(ROWS, 8) % 64)
        weight = torch.zeros(8, 4, dtype=torch.bfloat16, device="cuda")
        weight[:, -1] = 1  # a token's own tap: the result is the input
        found = causal_conv1d(
            tokens, weight, torch.zeros(2, 3, 8, dtype=torch.bfloat16, device="cuda"),
            torch.ones(1, 1, 1, dtype=torch.bool, device="cuda"), torch.tensor([1], device="cuda"),
            torch.tensor([0, ROWS], device="cuda"), ints(*[0] * ROWS), use_residual=False,
        )  # fmt: skip
        self.assertEqual(found.tolist(), tokens.tolist())


class TestFixupZeroKvOverflow(LargeCase):
    def test_zeroed_output_of_a_far_token(self):
        heads = width = 128
        far = (1 << 31) // (heads * width)
        out = torch.empty(far + 1, heads, width, dtype=torch.bfloat16, device="cuda")
        sums = torch.empty(far + 1, heads, dtype=torch.float32, device="cuda")
        out[far], sums[far] = 1, 1
        fixup_zero_kv_rows(out, sums, ints(1, 0), ints(0, far, far + 1), 1)
        self.assertFalse(out[far].any().item())
        self.assertTrue(sums[far].isneginf().all().item())


class TestTreeMaskOverflow(LargeCase):
    def test_tree_mask_behind_a_long_context(self):
        size, lengths = 2, [1 << 30, 1]  # the root and one draft
        count = sum(size * (length + size) for length in lengths)
        mask = torch.empty(count, dtype=torch.bool, device="cuda")
        own = mask[-(lengths[1] + size) * size :].view(size, -1)
        own[:] = False
        links = [torch.full((2, size), -1, device="cuda") for _ in range(3)]
        build_tree_kernel_efficient(
            torch.tensor([[-1], [-1]], device="cuda"),
            torch.zeros(2, 1, dtype=torch.int64, device="cuda"),
            torch.tensor(lengths, device="cuda"), mask,
            torch.empty(2 * size, dtype=torch.int64, device="cuda"), *links, 1, 1, size, 0,
        )  # fmt: skip
        self.assertEqual(own[:, lengths[1] :].tolist(), [[True, False], [True, True]])


if __name__ == "__main__":
    unittest.main()
