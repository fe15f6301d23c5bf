"""Calls that a B200 launches: four-bit floats and their scales, and norms for it alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm

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
)
from harness.sanitizer.plugins.for_sglang.formulas import normalize_rows

_CARD = "B200"
_FP8 = torch.float8_e4m3fn


def make_bytes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8, device="cuda")


def widen_values(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what packed values are, with a scale for 16 of them."""
    values, scales = values.cpu(), scales.cpu().view(_FP8).float()
    codes = torch.stack([values & 15, values >> 4], -1).flatten(-2).long()
    return (FOUR_BITS[codes].unflatten(-1, (-1, 16)) * scales[..., None]).flatten(-2)


@pytest.mark.loader("kda_kernels.norm_scale_shift_jit.norm_scale_shift_module", _CARD)
def test_norm_and_modulate() -> None:
    rows, scale, shift = draw_normal(2, 3072), draw_normal(3072), draw_normal(3072)
    found = make_empty(2, 3072)
    module = find_function("kda_kernels.norm_scale_shift_jit", "norm_scale_shift_module")()
    module.nss_bf16_row(found, rows, scale, shift, 1e-6)
    compare_tensors(
        found, layer_norm(rows.float(), (3072,)) * (1 + scale.float()) + shift.float(), 5e-2
    )


@pytest.mark.loader("ops.attention.msa_v1.compact_dequant._jit_dequant_module", _CARD)
def test_widen_chosen_pages() -> None:
    values = [draw_bytes(2, 1, 128, 64).to("cuda") for _ in range(2)]
    scales = [draw_floats(2, 1, 128, 8).abs().to(_FP8) for _ in range(2)]
    chosen = make_int32([[[1, 0, *[-1] * 14]]])
    found = [torch.zeros(1, 1, 16, 128, 128, device="cuda").to(_FP8) for _ in range(2)]
    gather = find_function(
        "ops.attention.msa_v1.compact_dequant", "gather_dequant_nvfp4_topk_pages_pair"
    )
    pages = torch.ones(1, device="cuda"), make_int32([[1, 0]]), chosen, make_int32([250])
    gather(*values, *scales, *pages, *found)
    for one, packed, scale in zip(found, values, scales, strict=True):
        expected = torch.zeros(16, 128, 128)
        wide = widen_values(packed[:, 0], scale[:, 0])
        expected[0, :122], expected[1] = wide[0, :122], wide[1]  # the second page first
        compare_tensors(one[0, 0], expected.to(_FP8))


@pytest.mark.loader("ops.kvcache.nvfp4_store_kv_index._jit_module", _CARD)
def test_store_keys_of_four_bits() -> None:
    keys, values, index = draw_normal(2, 1, 128), draw_normal(2, 1, 128), draw_normal(2, 128)
    pools = [make_bytes(2, 1, 64, size) for size in (64, 8, 64, 8)]
    index_pools = make_bytes(2, 64, 64), make_bytes(2, 64, 8)
    scale = torch.ones(1, device="cuda")
    store = find_function("ops.kvcache.nvfp4_store_kv_index", "nvfp4_store_kv_index")
    store(keys, values, index, *pools, *index_pools, make_int64([3, 70]), scale, page_size=64)
    for rows, packed, scales in ((keys[:, 0], *pools[:2]), (values[:, 0], *pools[2:])):
        _compare_rows(widen_values(packed[:, 0], scales[:, 0])[[0, 1], [3, 6]], rows)
    _compare_rows(widen_values(*index_pools)[[0, 1], [3, 6]], index)


@pytest.mark.loader("ops.layernorm.muse_spark_rmsnorm_nvfp4_quant._jit_module", _CARD)
def test_norm_to_four_bits() -> None:
    rows, weight = draw_normal(2, 512), draw_normal(512)
    quantize = find_function(
        "ops.layernorm.muse_spark_rmsnorm_nvfp4_quant", "fused_norm_fp4_quant_static"
    )
    values, scales = quantize(rows, weight, 1e-6, torch.ones(1, device="cuda"))
    _compare_rows(widen_values(values, scales), normalize_rows(rows, weight))


def _compare_rows(found: torch.Tensor, rows: torch.Tensor) -> None:
    """Hold blocks of 16 against their rows: an error is at most a sixth of the largest value."""
    blocks = rows.cpu().float().unflatten(-1, (-1, 16))
    error = (found.unflatten(-1, (-1, 16)) - blocks).abs().amax(-1)
    compare_tensors((error / blocks.abs().amax(-1)).clamp(min=0.2), torch.full(error.shape, 0.2))
