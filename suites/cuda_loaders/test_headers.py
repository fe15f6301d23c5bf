"""Calls of modules that include headers of CUTLASS or FlashInfer."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm

from fixtures.loader_tensors import (
    FOUR_BITS,
    compare_tensors,
    draw_floats,
    draw_normal,
    find_function,
    make_empty,
    make_int32,
    make_int64,
    make_zeros,
)

_CARD, _GROUP = "B200", 16


@pytest.mark.loader("ops.moe.moe_finalize_fuse_shared._jit_module")
def test_add_up_experts() -> None:
    rows, shared, weights = draw_normal(4, 64), draw_normal(2, 48), draw_floats(2, 2)
    places = make_int32([2, -1, 0, 3])
    add = find_function("ops.moe.moe_finalize_fuse_shared", "moe_finalize_fuse_shared")
    found = add(rows, places, weights, shared, 2)
    parts = rows.cpu().float()[places.cpu().clamp(min=0).long(), :48].view(2, 2, 48)
    used = weights.cpu() * (places.cpu().view(2, 2) >= 0)
    compare_tensors(found, torch.einsum("tk,tko->to", used, parts) + shared.cpu().float(), 1e-2)


@pytest.mark.loader("ops.speculative.sampling._jit_sampling_module")
def test_accept_the_only_probable_draft() -> None:
    chosen, accepted = make_int32([-1, -1]), make_int32([[-1, -1]])
    count, target = make_int32([-1]), make_zeros(1, 2, 8, dtype=torch.float32)
    target[0, 0, 3] = target[0, 1, 6] = 1.0
    find_function("ops.speculative.sampling", "tree_speculative_sampling_target_only")(
        chosen,
        accepted,
        count,
        make_int64([[5, 3]]),
        make_int64([[0, 1]]),
        make_int64([[1, -1]]),
        make_int64([[-1, -1]]),
        torch.full((1, 2), 0.5).to("cuda"),
        torch.full((1,), 0.5).to("cuda"),
        target,
        make_zeros(1, 2, 8, dtype=torch.float32),
    )
    compare_tensors(chosen, torch.tensor([3, 6]))
    compare_tensors(accepted, torch.tensor([[0, 1]]))
    compare_tensors(count, torch.tensor([1]))


@pytest.mark.loader("kda_kernels.norm_scale_shift_jit.norm_scale_shift_nvfp4_module", _CARD)
def test_norm_and_quantize_to_four_bits() -> None:
    width = 3072
    rows, residual, kept = (
        draw_normal(2, width),
        draw_normal(2, width).flip(0),
        make_empty(2, width),
    )
    added, gate, scale, shift = (draw_normal(width).roll(step) for step in range(4))
    packed, scales = _make_packed(2, width)
    module = find_function("kda_kernels.norm_scale_shift_jit", "norm_scale_shift_nvfp4_module")()
    inputs = kept, residual, rows, added, gate, scale, shift
    module.srnss_nvfp4_row(packed, scales, *inputs, torch.ones(1).to("cuda"), 1e-6)
    biased = (rows.cpu() + added.cpu()).float()
    gated = (biased * gate.cpu().float() + residual.cpu().float()).bfloat16()
    compare_tensors(kept, gated)
    normed = layer_norm(gated.float(), (width,))
    _compare_quantized(packed, scales, normed * (1 + scale.cpu().float()) + shift.cpu().float())


@pytest.mark.loader("ops.diffusion.layout.flux2_token_cat_nvfp4_jit._module", _CARD)
def test_join_and_quantize_to_four_bits() -> None:
    attention, further = draw_normal(1, 6144), draw_normal(1, 18432)
    packed, scales = _make_packed(1, 6144 + 18432)
    module = find_function("ops.diffusion.layout.flux2_token_cat_nvfp4_jit", "_module")()
    module.run(packed, scales, attention, further, torch.ones(1).to("cuda"))
    _compare_quantized(packed, scales, torch.cat([attention, further], 1).cpu().float())


def _make_packed(rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the room for 4-bit values, two in a byte, and for scales of 128 rows."""
    return (
        make_zeros(rows, width // 2, dtype=torch.uint8),
        make_zeros(128, width // _GROUP, dtype=torch.uint8),
    )


def _compare_quantized(packed: torch.Tensor, scales: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare shares of a group's largest value, a sixth of which a 4-bit value may be off."""
    bytes_of_rows = packed.cpu().long()
    codes = torch.stack([bytes_of_rows & 15, bytes_of_rows >> 4], -1).flatten(1)
    # Tiles of 128 rows and 4 columns: 32 rows, then what is 32 rows further, then columns.
    tiles = scales.cpu().view(-1, 32, 4, 4)[:, : len(packed), 0].transpose(0, 1)
    factors = tiles.reshape(len(packed), -1).view(torch.float8_e4m3fn).float()
    groups = expected.view(len(packed), -1, _GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    found = FOUR_BITS[codes].view_as(groups) * factors[..., None]
    compare_tensors(found / largest, groups / largest, 0.15)
