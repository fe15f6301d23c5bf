"""Quantized rows and their scales in SGLang's CUDA kernels.

THE INVARIANTS IN PLAIN WORDS
- A scale is the largest value of what it covers, over the format's largest; a scale that is an
  exponent is the next power of two.
- A value is its quotient by the scale, rounded to the format.
- A Hadamard transform is the product with the matrix of signs.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

FP8, LARGEST, GROUP = torch.float8_e4m3fn, 448.0, 128


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "quantization.hadamard",
        "quantization.per_tensor_quant_fp8",
        "quantization.per_token_group_quant",
        "quantization.per_token_quant_fp8",
    ),
)

sizes = st.sampled_from([1e-3, 1.0, 300.0])


@given(tokens=st.integers(1, 3), size=sizes, seed=cuda_kernels.seeds)
def test_each_token_has_its_scale(tokens: int, size: float, seed: int) -> None:
    name = "per_token_quant_fp8"
    quantize = cuda_kernels.require_kernel(f"quantization.{name}", name)
    with checking.checked_cuda() as check:
        rows = draw_rows(seed, tokens, 256, size, check.device)
        found = torch.empty(tokens, 256, dtype=FP8, device=check.device)
        scales = torch.empty(tokens, 1, dtype=torch.float32, device=check.device)
        quantize(rows, found, scales)
        check.assert_written(found)
        expect_quantized(rows, found, scales, rows.float().abs().amax(-1, keepdim=True) / LARGEST)


@given(count=st.integers(1, 4), is_static=st.booleans(), size=sizes, seed=cuda_kernels.seeds)
def test_a_tensor_has_one_scale(count: int, is_static: bool, size: float, seed: int) -> None:
    name = "per_tensor_quant_fp8"
    quantize = cuda_kernels.require_kernel(f"quantization.{name}", name)
    with checking.checked_cuda() as check:
        rows = draw_rows(seed, count, 264, size, check.device)
        wanted = rows.float().abs().max() / LARGEST
        scale = torch.zeros(1, dtype=torch.float32, device=check.device)
        if is_static:
            scale.fill_(wanted)
        found = torch.empty(count, 264, dtype=FP8, device=check.device)
        quantize(rows, found, scale, is_static)
        check.assert_written(found)
        expect_quantized(rows, found, scale, wanted.reshape(1))


@given(tokens=st.integers(1, 3), size=sizes, seed=cuda_kernels.seeds)
def test_a_group_has_an_exponent_as_its_scale(tokens: int, size: float, seed: int) -> None:
    name = "per_token_group_quant"
    quantize = cuda_kernels.require_kernel(f"quantization.{name}", name)
    with checking.checked_cuda() as check:
        rows = draw_rows(seed, tokens, 4 * GROUP, size, check.device)
        groups = rows.float().view(tokens, 4, GROUP)
        found, packed = quantize(rows, group_size=GROUP, scale_ue8m0=True)
        check.assert_written(found)
        exponents = packed.view(torch.uint8).view(tokens, 4).float()
        raw = groups.abs().amax(-1).clamp(min=1e-10) / LARGEST
        assert exponents.equal(raw.log2().ceil() + 127)
        wanted = (groups / torch.exp2(exponents - 127)[..., None]).view(tokens, -1).to(FP8).float()
        assert found.float().equal(wanted)


@given(tokens=st.integers(1, 3), size=sizes, seed=cuda_kernels.seeds)
def test_a_group_has_a_number_as_its_scale(tokens: int, size: float, seed: int) -> None:
    name = "per_token_group_quant"
    quantize = cuda_kernels.require_kernel(f"quantization.{name}", name)
    with checking.checked_cuda() as check:
        rows = draw_rows(seed, tokens, 2 * GROUP, size, check.device)
        found = torch.empty(tokens, 2 * GROUP, dtype=FP8, device=check.device)
        scales = torch.empty(tokens, 2, dtype=torch.float32, device=check.device)
        quantize(rows, found, scales, group_size=GROUP)
        groups = rows.view(tokens, 2, GROUP)
        largest = groups.float().abs().amax(-1, keepdim=True)
        expect_quantized(groups, found.view(tokens, 2, GROUP), scales[..., None], largest / LARGEST)


@given(
    tokens=st.integers(1, 3),
    width=st.sampled_from([8, 64, 100, 128]),
    scale=st.sampled_from([1.0, 0.125]),
    seed=cuda_kernels.seeds,
)
def test_a_hadamard_transform_sums_with_signs(
    tokens: int, width: int, scale: float, seed: int
) -> None:
    transform = cuda_kernels.require_kernel("quantization.hadamard", "hadamard_transform")
    with checking.checked_cuda() as check:
        rows = draw_rows(seed, tokens, width, 1.0, check.device)
        found = transform(rows, scale)
        padded = 1 << (width - 1).bit_length()
        signs = torch.tensor(
            [[1.0 - 2 * ((a & b).bit_count() % 2) for b in range(padded)] for a in range(width)]
        )
        exact = scale * rows.float().cpu() @ signs[:, :width].T
        torch.testing.assert_close(found.float().cpu(), exact, rtol=0.01, atol=0.1)


def draw_rows(seed: int, rows: int, width: int, size: float, device: str) -> torch.Tensor:
    drawn = cuda_kernels.draw_normal(seed, rows, width, device=device, dtype=torch.float32)
    return (drawn * size).to(torch.bfloat16)


def expect_quantized(
    rows: torch.Tensor, found: torch.Tensor, scales: torch.Tensor, wanted: torch.Tensor
) -> None:
    """The scales are right to float32's rounding, and each value is next to its quotient."""
    torch.testing.assert_close(scales, wanted, rtol=1e-5, atol=0)
    exact = rows.float() / scales
    torch.testing.assert_close(found.float(), exact, rtol=0.0626, atol=0.001)
    assert (found.float().abs() <= LARGEST).all()
