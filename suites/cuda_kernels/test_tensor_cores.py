"""Products on tensor cores in SGLang's CUDA kernels.

THE INVARIANTS IN PLAIN WORDS
- An element is the exact product of its row and its column, rounded to bfloat16. Sums of float32
  may be off by their own rounding.
- A row does not depend on the other rows of its batch.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

pytestmark = pytest.mark.prepared(by=cuda_kernels.build_modules, names=("gemm.dsv3_fused_a_gemm",))

# Widths in and out: two stages of 256, and with one token more stages than shared memory holds.
WIDTHS = [(512, 32), (4352, 16)]


@given(widths=st.sampled_from(WIDTHS), tokens=st.integers(1, 16), seed=cuda_kernels.seeds)
def test_a_small_batch_is_multiplied_exactly(
    widths: tuple[int, int], tokens: int, seed: int
) -> None:
    width, outputs = widths
    multiply = cuda_kernels.require_kernel("gemm.dsv3_fused_a_gemm", "dsv3_fused_a_gemm")
    with checking.checked_cuda() as check:
        rows = cuda_kernels.draw_normal(seed, tokens, width, device=check.device)
        weight = cuda_kernels.draw_normal(seed + 1, outputs, width, device=check.device)
        found = multiply(rows, weight.T)
        left, right = rows.cpu().double(), weight.cpu().double()
        exact = left @ right.T
        # An ulp of float32 for each of the sums, and half a unit of bfloat16's last place.
        slack = width * 2.0**-24 * (left.abs() @ right.abs().T) + exact.abs() * 2.0**-8
        assert ((found.cpu().double() - exact).abs() <= slack).all()


@given(tokens=st.integers(2, 16), seed=cuda_kernels.seeds)
def test_a_row_does_not_depend_on_its_batch(tokens: int, seed: int) -> None:
    multiply = cuda_kernels.require_kernel("gemm.dsv3_fused_a_gemm", "dsv3_fused_a_gemm")
    with checking.checked_cuda() as check:
        rows = cuda_kernels.draw_normal(seed, tokens, 512, device=check.device)
        weight = cuda_kernels.draw_normal(seed + 1, 32, 512, device=check.device)
        order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))
        found = multiply(rows, weight.T).cpu()
        permuted = multiply(rows.cpu()[order].to(check.device), weight.T).cpu()
        assert permuted.equal(found[order])
        alone = multiply(rows[:1].contiguous(), weight.T).cpu()
        assert alone.equal(found[:1])
