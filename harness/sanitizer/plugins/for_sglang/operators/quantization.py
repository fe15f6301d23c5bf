"""Rows rounded to 8 bits, weights of 4 bits, and the products of both."""

from __future__ import annotations

import torch

from harness.sanitizer.device.stand_ins import JitBuild, stand_in
from harness.sanitizer.plugins.for_sglang import formulas
from harness.sanitizer.plugins.for_sglang.formulas import (
    find_largest_code,
    find_scales,
    repeat_scales,
    round_to_codes,
)

SMALLEST_ABSOLUTE = 1e-10  # a group of zeros has a scale, too; a row or a tensor has 0
TMA_BYTES = 16  # a copy by the tensor memory accelerator has columns of as many bytes
EXPONENT_BITS = 23  # of a float32 lie below its exponent


def _round_rows(
    values: torch.Tensor, group: int | None, codes: torch.Tensor, smallest: float = 0.0
) -> torch.Tensor:
    """Write the codes of the groups of rows; return their scales."""
    scales = find_scales(values, group, codes.dtype, smallest)
    repeated = repeat_scales(scales, values.shape[-1])
    codes.copy_(round_to_codes(values, repeated, codes.dtype).view(codes.shape))
    return scales


@stand_in(
    "jit:per_token_group_quant.per_token_group_quant",
    source="sglang/kernels/jit/csrc/gemm/per_token_group_quant.cuh, flat layout",
)
def per_token_group_quant(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Round each token's groups, as many as there are scales, to 8 bits."""
    if scales.dtype != torch.float32 or x.shape != codes.shape:
        raise NotImplementedError("the stand-in has float32 scales and no activation before them")
    scales.copy_(_round_rows(x, x.shape[-1] // scales.shape[-1], codes, SMALLEST_ABSOLUTE))


@stand_in(
    "sgl_kernel.sgl_per_token_group_quant_8bit",
    source="sgl-kernel/python/sgl_kernel/gemm.py: sgl_per_token_group_quant_8bit",
)
def sgl_per_token_group_quant_8bit(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    group_size: int,
    eps: float,
    smallest: float,
    largest: float,
    scale_ue8m0: bool = False,
    fuse_silu_and_mul: bool = False,
    masked_m: torch.Tensor | None = None,
    enable_v2: bool | None = None,
) -> None:
    """Round each token's groups to 8 bits, as earlier releases ask for it."""
    if scale_ue8m0 or fuse_silu_and_mul or masked_m is not None:
        raise NotImplementedError("the stand-in has float32 scales and no activation before them")
    bound = find_largest_code(codes.dtype)
    lowest = (-bound, -bound - 1) if codes.dtype == torch.int8 else (-bound,)  # -128 is never taken
    if eps != SMALLEST_ABSOLUTE or largest != bound or smallest not in lowest:
        raise NotImplementedError(
            f"the stand-in has scales from {SMALLEST_ABSOLUTE} and codes up to {bound:g}, not "
            f"{eps}, {smallest:g} and {largest:g}"
        )
    per_token_group_quant(x, codes, scales)


@stand_in(
    "jit:awq_dequantize.awq_dequantize",
    source="sglang/kernels/jit/csrc/gemm/awq_dequantize.cuh",
)
def awq_dequantize(
    output: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, packed_zeros: torch.Tensor
) -> None:
    """Write `(code - zero) * scale`; each group of rows has its own zeros and scales."""
    output.copy_(formulas.dequantize_awq(packed, scales, packed_zeros))


@stand_in(
    "sgl_kernel.awq_dequantize", source="sgl-kernel/python/sgl_kernel/gemm.py: awq_dequantize"
)
def dequantize_awq(
    packed: torch.Tensor, scales: torch.Tensor, packed_zeros: torch.Tensor
) -> torch.Tensor:
    """Return `(code - zero) * scale`, as earlier releases ask for it."""
    return formulas.dequantize_awq(packed, scales, packed_zeros).to(scales.dtype)


@stand_in(
    "sgl_kernel.int8_scaled_mm", source="sgl-kernel/python/sgl_kernel/gemm.py: int8_scaled_mm"
)
def int8_scaled_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the integers' product, scaled by its row and its column."""
    product = (mat_a.double() @ mat_b.double()).float()  # exact: sums of int8 products are small
    product = product * scales_a.view(-1, 1).float() * scales_b.view(1, -1).float()
    return (product if bias is None else product + bias.float()).to(out_dtype)


@stand_in(
    "jit:per_token_quant_fp8.per_token_quant_fp8",
    "sgl_kernel.sgl_per_token_quant_fp8",
    source="sglang/kernels/jit/csrc/gemm/per_token_quant_fp8.cuh",
)
def per_token_quant_fp8(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Round each token to 8 bits."""
    scales.copy_(_round_rows(x, None, codes).view(scales.shape))


@stand_in(
    "jit:per_tensor_quant_fp8.per_tensor_quant_fp8",
    source="sglang/kernels/jit/csrc/gemm/per_tensor_quant_fp8.cuh",
)
def per_tensor_quant_fp8(
    x: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    build: JitBuild,
) -> None:
    """Round a whole tensor to 8 bits, by one scale: the caller's, or at least that of the values.

    Callers that give none pass 0, to which the kernel's blocks add their own by atomic maxima.
    """
    values = x.float().view(1, -1)
    if build.marker[1] != "true":  # no static scale
        scale.copy_(torch.maximum(scale, find_scales(values, dtype=codes.dtype).view(1)))
    codes.copy_(round_to_codes(values, scale.view(1, 1), codes.dtype).view(codes.shape))


@stand_in("deep_gemm.utils.align", source="DeepGEMM: align")
def align(size: int, step: int) -> int:
    return -(-size // step) * step


@stand_in("deep_gemm.utils.get_tma_aligned_size", source="DeepGEMM: get_tma_aligned_size")
def get_tma_aligned_size(size: int, element_size: int) -> int:
    """Round a column's length up to what the tensor memory accelerator copies."""
    length: int = align(size, TMA_BYTES // element_size)
    return length


@stand_in(
    "deep_gemm.utils.layout.get_mn_major_tma_aligned_packed_ue8m0_tensor",
    source="DeepGEMM: get_mn_major_tma_aligned_packed_ue8m0_tensor",
)
def pack_ue8m0_scales(scales: torch.Tensor) -> torch.Tensor:
    """Pack the exponents of four scales of a row into one integer; columns are contiguous."""
    *groups, rows, columns = scales.shape
    width = -(-columns // 4)
    aligned = get_tma_aligned_size(rows, 4)
    exponents = (scales.view(torch.int32) >> EXPONENT_BITS).to(torch.uint8)
    padded = torch.nn.functional.pad(exponents, (0, 4 * width - columns, 0, aligned - rows))
    packed = torch.empty(*groups, width, aligned, dtype=torch.int32, device=scales.device).mT
    return packed.copy_(padded.view(torch.int32))[..., :rows, :]
