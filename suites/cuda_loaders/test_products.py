"""Calls of products with quantized weights, of transposes, and of balanced experts."""

from __future__ import annotations

import pytest
import torch

from fixtures.loader_tensors import (
    FOUR_BITS,
    compare_tensors,
    draw_bytes,
    draw_floats,
    draw_normal,
    find_function,
    make_empty,
    make_int32,
    make_int64,
    make_zeros,
)
from harness.sanitizer.plugins.for_sglang.formulas import multiply_rows

_FP8 = torch.float8_e4m3fn
_LPLB = "ops.lplb.cuda_solver"


@pytest.mark.loader("ops.gemm.sm120_fp8_gemv._jit_sm120_fp8_gemv_module")
def test_multiply_one_row_of_bytes() -> None:
    row, weights = draw_floats(1, 512).to(_FP8), draw_floats(256, 512).to(_FP8)
    scale = torch.tensor([0.25]).to("cuda")
    found = find_function("ops.gemm.sm120_fp8_gemv", "sm120_fp8_gemv")(row, weights, scale)
    compare_tensors(found, 0.25 * (multiply_rows(row, weights)), 1e-2)


@pytest.mark.loader("ops.gemm.sm120_nvfp4_moe._transpose_module")
def test_transpose_experts_of_bytes() -> None:
    module = find_function("ops.gemm.sm120_nvfp4_moe", "_transpose_module")(8, 4)
    weights = draw_bytes(512, 8, 4).to("cuda")
    transposed = torch.zeros(512, 4, 8, dtype=torch.uint8, device="cuda")
    module.run(weights, transposed)
    compare_tensors(transposed, weights.transpose(1, 2))


@pytest.mark.loader("ops.gemm.small_gemm_bf16._jit_small_gemm_module")
def test_multiply_a_batch_of_rows() -> None:
    rows, weights = draw_normal(2, 512), draw_normal(128, 512)
    found = find_function("ops.gemm.small_gemm_bf16", "n128k512_gemm_bf16")(rows, weights)
    compare_tensors(found, multiply_rows(rows, weights), 1e-2)


@pytest.mark.loader("ops.moe.expert_pack_mxfp4._extension")
def test_multiply_by_packed_experts() -> None:
    rows, weights = draw_normal(2, 64), draw_bytes(3, 8, 2, 17)
    weights[..., 0] = 120 + weights[..., 0] % 8  # the exponents of blocks of 32
    slots = make_int32([2, 0, 1, 2])
    found = find_function("ops.moe.expert_pack_mxfp4", "mxfp4_matvec")(
        rows,
        weights.flatten(1).to("cuda"),
        slots,
        role_offset=0,
        role_bytes=8 * 2 * 17,
        input_size=64,
        output_size=8,
        records_per_input=2,
    )
    codes = torch.cat([weights[..., 1:] & 15, weights[..., 1:] >> 4], -1).long()
    dense = (FOUR_BITS[codes] * 2.0 ** (weights[..., :1].float() - 127)).flatten(2)
    inputs = rows.cpu().float().repeat_interleave(2, 0)
    compare_tensors(found, torch.einsum("ni,noi->no", inputs, dense[slots.cpu().long()]), 1e-2)


@pytest.mark.loader("ops.moe.gguf_moe_vec._jit_gguf_moe_vec_module")
def test_multiply_by_gguf_experts() -> None:
    rows, codes = draw_normal(2, 512), draw_bytes(2, 4, 16, 32).view(torch.int8)
    scales = torch.full((2, 4, 16, 1), 0.0625, dtype=torch.float16)
    weights = torch.cat([scales.view(torch.int8), codes], -1).flatten(2).view(torch.uint8)
    routes = make_int32([[1, -1], [0, 1]])
    multiply = find_function("ops.moe.gguf_moe_vec", "gguf_moe_a8_vec")
    found = multiply(rows, weights.to("cuda"), routes, 2, 8, 4, 2).cpu().float()
    dense = (codes * 0.0625).flatten(2)[routes.cpu().clamp(min=0).long().flatten()]
    expected = torch.einsum("ni,noi->no", rows.cpu().float().repeat_interleave(2, 0), dense)
    expected[1] = 0  # a route below zero
    error = (found - expected).abs().max() / expected.abs().max()
    compare_tensors(
        error.round(decimals=1), torch.zeros(())
    )  # the inputs have been rounded to 8 bits


@pytest.mark.loader("ops.moe.minimax_quant_ue8m0._jit_scatter_module")
def test_quantize_and_scatter_rows() -> None:
    rows, places = draw_normal(2, 512), make_int32([[5, -1], [0, 3]])
    values = make_zeros(2, 4, 512, dtype=_FP8)
    scales = make_zeros(2, 1, 4, dtype=torch.int32)
    scatter = find_function("ops.moe.minimax_quant_ue8m0", "per_token_quant_fp8_ue8m0_scatter")
    scatter(rows, values, scales, places, make_int32([[1, 0], [0, 0]]), 2, 4)
    exponents = scales.cpu().view(8).view(torch.uint8).view(8, 4)
    found = values.cpu().float().view(8, 4, 128) * 2.0 ** (exponents.float() - 127)[..., None]
    for place, row in ((5, 0), (0, 1), (3, 1)):
        compare_tensors(found[place].flatten(), rows[row], 0.07)  # a rounding of three bits


@pytest.mark.loader(f"{_LPLB}._prep_module")
def test_prepare_a_balance() -> None:
    full, sums, single = make_zeros(3, 4, dtype=torch.float32), draw_floats(3), draw_floats(2, 3)
    bounds, shares = make_empty(3, dtype=torch.float32), make_empty(3, dtype=torch.float32)
    counts = torch.tensor([1.0, 5.0, 2.0, 8.0]).to("cuda")
    places = make_int64([0, 3, 2]), make_int64([1])
    prepare = find_function(_LPLB, "prep_lp_inputs")
    prepare(full, bounds, shares, counts, *places, single, sums)
    normed = counts.cpu() / 16
    expected = torch.cat([normed[[1]], -(single.cpu() @ normed[[0, 3, 2]])])
    compare_tensors(shares, normed[[0, 3, 2]], 1e-6)
    compare_tensors(bounds, expected, 1e-6)
    compare_tensors(full[:, -1], expected - sums.cpu(), 1e-6)


@pytest.mark.loader(f"{_LPLB}._post_module")
def test_finish_a_balance() -> None:
    found, solution = make_empty(3, 2, dtype=torch.float32), make_zeros(4, dtype=torch.float32)
    solution.copy_(torch.tensor([0.75, -0.5, 0.25, 9.0]))
    single = torch.tensor([0.5, 0.125]).to("cuda")
    finish = find_function(_LPLB, "extract_log2phy_prob")
    table = make_int64([[0, -1], [1, 3], [4, 2]])
    finish(found, solution, single, make_int64([0, 2]), make_int64([1, 4, 3]), table)
    physical = torch.tensor([0.5, 0.75, 0.125, 0.25, 0.0, 0.0])
    compare_tensors(found, physical[table.cpu()])
