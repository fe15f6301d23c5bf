"""Quantized rows and their scales in SGLang's CUDA kernels.

THE INVARIANTS IN PLAIN WORDS
- A scale is the largest value of what it covers, over the format's largest; a scale that is an
  exponent is the next power of two.
- A value is its quotient by the scale, rounded to the format.
- A Hadamard transform is the product with the matrix of signs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from fixtures.cuda_kernels import KernelDraw
from harness.runs.zoo.formulas import Formula, FormulaList, Pair
from harness.sanitizer.plugins.for_sglang.formulas import (
    find_exponents,
    find_scales,
    repeat_scales,
    round_to_codes,
)

FP8, LARGEST, GROUP = torch.float8_e4m3fn, 448.0, 128

formula = FormulaList()


def draw_rows(draw: KernelDraw, width: int) -> torch.Tensor:
    scale = draw.one_of(1e-3, 1.0, 300.0)
    return draw.floats(draw.between(1, 3), width, dtype=torch.bfloat16, scale=scale)


@formula("quantization.per_token_quant_fp8:per_token_quant_fp8")
def each_token_has_its_scale(draw: KernelDraw, run: Any) -> Pair:
    rows = draw_rows(draw, 256)
    found, scales = draw.empty(*rows.shape, dtype=FP8), draw.empty(len(rows), 1, dtype=torch.float)
    run(rows, found, scales)
    return pair_quantized(rows, found, scales, find_scales(rows))


@formula("quantization.per_tensor_quant_fp8:per_tensor_quant_fp8")
def a_tensor_has_one_scale(draw: KernelDraw, run: Any) -> Pair:
    rows, is_static = draw_rows(draw, 264), draw.flag()
    found, wanted = draw.empty(*rows.shape, dtype=FP8), find_scales(rows.flatten())
    scale = wanted.clone() if is_static else torch.zeros_like(wanted)
    run(rows, found, scale, is_static)
    return pair_quantized(rows, found, scale, wanted)


@formula("quantization.per_token_group_quant:per_token_group_quant")
def a_group_has_a_number_as_its_scale(draw: KernelDraw, run: Any) -> Pair:
    rows = draw_rows(draw, 2 * GROUP)
    found = torch.empty_like(rows, dtype=FP8)
    scales = torch.empty(len(rows), 2, dtype=torch.float32, device=draw.device)
    run(rows, found, scales, group_size=GROUP)
    return pair_quantized(rows, found, scales, find_scales(rows, GROUP))


@formula("quantization.per_token_group_quant:per_token_group_quant")
def a_group_has_an_exponent_as_its_scale(draw: KernelDraw, run: Any) -> Pair:
    rows = draw_rows(draw, 4 * GROUP)
    found, packed = run(rows, group_size=GROUP, scale_ue8m0=True)
    draw.outputs.append(found)
    exponents = packed.view(torch.uint8).view(len(rows), 4).float()
    assert exponents.equal(find_exponents(find_scales(rows, GROUP, smallest=1e-10)))
    scales = repeat_scales(torch.exp2(exponents - 127), 4 * GROUP)
    assert found.float().equal(round_to_codes(rows, scales).float())
    return [], []


def pair_quantized(
    rows: torch.Tensor, found: torch.Tensor, scales: torch.Tensor, wanted: torch.Tensor
) -> Pair:
    """The scales are right to float32's rounding; each value has to be next to its quotient."""
    torch.testing.assert_close(scales, wanted, rtol=1e-5, atol=0)
    assert (found.float().abs() <= LARGEST).all()
    return [found], [rows.float() / repeat_scales(scales, rows.shape[-1])]


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=("quantization.hadamard", *cuda_kernels.list_modules(formula)),
)


@pytest.mark.parametrize("kernel", formula.formulas, ids=lambda kernel: kernel.name)
@given(data=st.data())
def test_a_kernel_computes_its_formula(kernel: Formula, data: st.DataObject) -> None:
    cuda_kernels.compare_kernel(kernel, data, relative=0.0626, absolute=0.001)


transforms = FormulaList()


@transforms("quantization.hadamard:hadamard_transform")
def a_hadamard_transform_sums_with_signs(draw: KernelDraw, run: Any) -> Pair:
    width, scale = draw.one_of(8, 64, 100, 128), draw.one_of(1.0, 0.125)
    rows = draw.halves(draw.between(1, 3), width)
    padded = 1 << (width - 1).bit_length()
    signs = torch.tensor(
        [[1.0 - 2 * ((a & b).bit_count() % 2) for b in range(padded)] for a in range(width)]
    )
    return [run(rows, scale).cpu()], [scale * rows.float().cpu() @ signs[:, :width].T]


@given(data=st.data())
def test_a_hadamard_transform_sums_with_signs(data: st.DataObject) -> None:
    cuda_kernels.compare_kernel(transforms.formulas[0], data, relative=0.01, absolute=0.1)
