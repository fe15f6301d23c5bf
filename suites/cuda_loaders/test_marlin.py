"""Calls of Marlin's products on tensor cores: weights of 4 bits, 8 above their value.

A block reads the next tile ahead of time, and the last one's is none: its words are not used, and
without four tiles of 128 rows for each block nobody has written them. So the matrices are wide, and
races are not looked for.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fixtures.loader_tensors import (
    compare_tensors,
    draw_normal,
    find_function,
    make_int32,
    make_zeros,
)

_DEPTH, _GROUP, _OFFSET = 512, 128, 8
# SGLang's number for the type: a mantissa of 4 bits, the offset, and how it writes NaN.
_FOUR_BITS = SimpleNamespace(id=4 << 8 | _OFFSET << 17 | 1 << 50)
_LOCKS = 132 * 4


def _draw_weights(width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights as Marlin has them, their scales, and what they mean, rounded to bfloat16."""
    from sglang.srt.layers.quantization.marlin_utils import marlin_permute_scales

    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (_DEPTH, width), generator=generator)
    scales = (torch.rand(_DEPTH // _GROUP, width, generator=generator) + 0.5).bfloat16()
    shifts = 4 * torch.arange(8).view(1, 8, 1)
    words = (codes.view(-1, 8, width) << shifts).sum(1)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int().to("cuda")
    repack = find_function("ops.quantization.gptq_marlin_repack", "gptq_marlin_repack")
    packed = repack(words, make_int32([]), _DEPTH, width, 4)
    dense = (codes - _OFFSET) * scales.float().repeat_interleave(_GROUP, 0)
    permuted = marlin_permute_scales(scales, _DEPTH, width, _GROUP).to("cuda")
    return packed, permuted, dense.bfloat16()


@pytest.mark.loader("ops.gemm.gptq_marlin._jit_gptq_marlin_module", races=False)
def test_multiply_by_four_bits() -> None:
    rows, width = draw_normal(3, _DEPTH), 12_800
    packed, scales, dense = _draw_weights(width)
    found = find_function("ops.gemm.gptq_marlin", "gptq_marlin_gemm")(
        rows,
        None,
        packed,
        scales,
        None,
        None,
        None,
        None,
        make_zeros(_LOCKS, dtype=torch.int32),
        _FOUR_BITS,
        3,
        width,
        _DEPTH,
        use_fp32_reduce=True,
    )
    compare_tensors(found, rows.cpu().double() @ dense.double(), 1e-2)


@pytest.mark.loader("ops.moe.moe_wna16_marlin._jit_moe_wna16_marlin_module", races=False)
def test_multiply_by_experts_of_four_bits() -> None:
    rows, width, padding = draw_normal(3, _DEPTH), 16_384, 3
    packed, scales, dense = zip(*(_draw_weights(width, seed) for seed in (1, 2)), strict=True)
    # Expert 1 has tokens 0 and 2, expert 0 has token 1, in blocks of 8.
    places = torch.full((2, 8), padding, dtype=torch.int32)
    places[0, :2] = torch.tensor([0, 2])
    places[1, 0] = 1
    found = find_function("ops.moe.moe_wna16_marlin", "moe_wna16_marlin_gemm")(
        rows,
        None,
        torch.stack([one.cpu() for one in packed]).to("cuda"),
        None,
        torch.stack([one.cpu() for one in scales]).to("cuda"),
        None,
        None,
        None,
        None,
        make_zeros(_LOCKS, dtype=torch.int32),
        places.flatten().to("cuda"),
        make_int32([1, 0]),
        make_int32([16]),
        torch.ones(3, 1).to("cuda"),
        8,
        1,
        False,
        False,
        _FOUR_BITS,
        3,
        width,
        _DEPTH,
        use_fp32_reduce=True,
    )
    of_token = torch.stack([dense[expert] for expert in (1, 0, 1)]).double()
    compare_tensors(found, torch.einsum("nk,nko->no", rows.cpu().double(), of_token), 1e-2)
