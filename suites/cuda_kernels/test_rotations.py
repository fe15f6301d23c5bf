"""Rotary positions in SGLang's CUDA kernels, with and without norms and stores.

THE INVARIANTS IN PLAIN WORDS
- Each head of a token is rotated by the token's position; other channels stay as they are.
- A rotated key that is stored is the key that stays in its tensor, and its value goes along.
- A position that clamping makes is the one before the sequence's end, and never negative.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from fixtures.cuda_kernels import KernelDraw
from fixtures.stand_ins.operator_calls import INDICES
from harness import checking
from harness.runs.zoo.formulas import Formula, FormulaList, Pair
from harness.sanitizer.plugins.for_sglang.formulas import (
    find_angles,
    normalize_rows,
    rotate_heads,
    store_rows,
)

HEAD, SLOTS, POSITIONS = 64, 10, 40

formula = FormulaList()


@given(lengths=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=300))
def test_a_position_is_the_last_one_of_its_sequence(lengths: list[int]) -> None:
    clamp = cuda_kernels.require_kernel("attention.clamp_position", "clamp_position_cuda")
    with checking.checked_cuda() as check:
        found = clamp(torch.tensor(lengths, device=check.device))
        assert found.tolist() == [max(length - 1, 0) for length in lengths]


def make_angles(rotated: int, device: str) -> torch.Tensor:
    """Return each position's cosines, and its sines behind them."""
    frequencies = 10000.0 ** (-torch.arange(0, rotated, 2) / rotated)
    angles = torch.outer(torch.arange(POSITIONS), frequencies)
    return torch.cat([angles.cos(), angles.sin()], -1).to(device)


def draw_positions(draw: KernelDraw, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return draw.integers(0, POSITIONS, draw.between(1, 4), dtype=dtype)


def draw_heads(draw: KernelDraw, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw queries, of twice as many heads, keys and values."""
    heads = draw.between(1, 3)
    parts = [draw.halves(tokens, count, HEAD) for count in (2 * heads, heads, heads)]
    return parts[0], parts[1], parts[2]


def rotate_rows(
    rows: torch.Tensor, angles: torch.Tensor, positions: torch.Tensor, is_neox: bool = True
) -> torch.Tensor:
    return rotate_heads(rows.float(), *find_angles(angles.float(), positions), is_neox)


@formula("attention.rope:rotary_embedding")
def heads_are_rotated_by_their_positions(draw: KernelDraw, run: Any) -> Pair:
    positions, is_neox = draw_positions(draw), draw.flag()
    queries, keys, _ = draw_heads(draw, len(positions))
    angles = make_angles(draw.one_of(32, HEAD), draw.device).to(torch.bfloat16)
    wanted = [rotate_rows(rows, angles, positions, is_neox) for rows in (queries, keys)]
    has_keys = draw.flag()
    flat = queries.flatten(1), keys.flatten(1) if has_keys else None
    run(positions, *flat, HEAD, angles, is_neox)
    return [queries, keys][: 1 + has_keys], wanted[: 1 + has_keys]


@formula("attention.rope:apply_rope_inplace")
def heads_are_rotated_in_place(draw: KernelDraw, run: Any) -> Pair:
    positions = draw_positions(draw, draw.one_of(*INDICES))
    queries, keys, _ = draw_heads(draw, len(positions))
    angles = make_angles(HEAD, draw.device)
    wanted = [rotate_rows(rows, angles, positions) for rows in (queries, keys)]
    run(queries, keys, angles, positions, is_neox=True)
    return [queries, keys], wanted


@formula("attention.rope:apply_rope_inplace_with_kvcache")
def rotated_keys_are_stored_with_their_values(draw: KernelDraw, run: Any) -> Pair:
    positions = draw_positions(draw, draw.one_of(*INDICES))
    queries, keys, values = draw_heads(draw, len(positions))
    angles, slots = make_angles(HEAD, draw.device), draw.permutation(SLOTS)[: len(positions)]
    caches = [draw.zeros(SLOTS, keys[0].numel()) for _ in range(2)]
    wanted = [rotate_rows(rows, angles, positions) for rows in (queries, keys)]
    run(queries, keys, values, *caches, angles, positions, slots.to(positions.dtype), is_neox=True)
    stored = [torch.zeros_like(cache) for cache in caches]
    store_rows(keys, stored[0], slots)
    store_rows(values, stored[1], slots)
    assert all(one.equal(other) for one, other in zip(caches, stored, strict=True))
    return [queries, keys], wanted


@formula("attention.rope:bf16_rope_scale_store")
def a_fused_projection_is_rotated_scaled_and_stored(draw: KernelDraw, run: Any) -> Pair:
    positions, scale = draw_positions(draw), draw.one_of(1.0, 0.5)
    tokens, heads = len(positions), draw.between(1, 3)
    fused, slots = draw.halves(tokens, 4 * heads, HEAD), draw.permutation(SLOTS)[:tokens]
    found = torch.empty(tokens, 2 * heads * HEAD, dtype=fused.dtype, device=draw.device)
    caches = [draw.zeros(SLOTS, heads, HEAD) for _ in range(2)]
    angles = make_angles(HEAD, draw.device).to(torch.bfloat16)
    run(fused.flatten(1), found, *caches, angles, positions, slots, scale)
    queries, keys, values = fused.split([2 * heads, heads, heads], 1)
    written = slots > 0  # slot 0 is that of padding
    stored = [torch.zeros_like(cache).float() for cache in caches]
    store_rows(rotate_rows(keys, angles, positions)[written], stored[0], slots[written])
    store_rows((values.float() * scale)[written].to(fused.dtype), stored[1], slots[written])
    assert caches[1].float().equal(stored[1])
    others = [slot for slot in range(SLOTS) if slot not in slots[written].tolist()]
    assert not caches[0][others].any()
    return [found.view_as(queries), caches[0]], [rotate_rows(queries, angles, positions), stored[0]]


@formula("attention.fused_qknorm_rope:fused_qk_norm_rope")
def heads_are_normed_before_they_are_rotated(draw: KernelDraw, run: Any) -> Pair:
    positions = draw_positions(draw, torch.int32)
    sizes = draw.between(1, 2), draw.between(1, 2), draw.between(0, 2)
    fused, weights = (
        draw.halves(len(positions), sum(sizes), HEAD),
        [draw.halves(HEAD) for _ in "qk"],
    )
    queries, keys, values = fused.split(list(sizes), 1)
    normed = [normalize_rows(rows, one) for rows, one in zip((queries, keys), weights, strict=True)]
    turned = rotate_rows(torch.cat(normed, 1), make_angles(HEAD, draw.device), positions)
    wanted = torch.cat([turned, values.float()], 1)
    flat = fused.flatten(1)
    run(flat, *sizes, HEAD, 1e-6, *weights, 10000.0, True, positions, 1.0, 1.0, 1.0, 1.0)
    return [flat.view_as(wanted)], [wanted]


@formula("attention.dsv4.norm_rope:fused_rope_inplace")
def the_tail_of_a_latent_head_is_rotated(draw: KernelDraw, run: Any) -> Pair:
    positions, inverse = draw_positions(draw), draw.flag()
    queries, keys, _ = draw_heads(draw, len(positions))
    keys = keys[:, :1].contiguous()
    cosines, sines = make_angles(HEAD, draw.device).chunk(2, -1)
    angles = torch.cat([cosines, -sines if inverse else sines], -1)
    wanted = [rotate_rows(rows, angles, positions, False) for rows in (queries, keys)]
    run(queries, keys, torch.complex(cosines, sines), positions, inverse)
    return [queries, keys], wanted


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=("attention.clamp_position", *cuda_kernels.list_modules(formula)),
)


@pytest.mark.parametrize("kernel", formula.formulas, ids=lambda kernel: kernel.name)
@given(data=st.data())
def test_a_kernel_computes_its_formula(kernel: Formula, data: st.DataObject) -> None:
    cuda_kernels.compare_kernel(kernel, data, relative=0.02, absolute=0.04)
