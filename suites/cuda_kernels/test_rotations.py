"""Rotary positions in SGLang's CUDA kernels, with and without norms and stores.

THE INVARIANTS IN PLAIN WORDS
- Each head of a token is rotated by the token's position; other channels stay as they are.
- A rotated key that is stored is the key that stays in its tensor, and its value goes along.
- A position that clamping makes is the one before the sequence's end, and never negative.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

HEAD, SLOTS, POSITIONS = 64, 10, 40


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "attention.clamp_position",
        "attention.dsv4.norm_rope",
        "attention.fused_qknorm_rope",
        "attention.minimax_qknorm_rope",
        "attention.rope",
    ),
)

positions = st.lists(st.integers(0, POSITIONS - 1), min_size=1, max_size=4)
heads = st.integers(1, 3)


@given(lengths=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=300))
def test_a_position_is_the_last_one_of_its_sequence(lengths: list[int]) -> None:
    clamp = cuda_kernels.require_kernel("attention.clamp_position", "clamp_position_cuda")
    with checking.checked_cuda() as check:
        found = clamp(torch.tensor(lengths, device=check.device))
        assert found.tolist() == [max(length - 1, 0) for length in lengths]


@given(
    positions=positions,
    heads=heads,
    rotated=st.sampled_from([32, HEAD]),
    is_neox=st.booleans(),
    has_keys=st.booleans(),
    seed=cuda_kernels.seeds,
)
def test_heads_are_rotated_by_their_positions(
    positions: list[int], heads: int, rotated: int, is_neox: bool, has_keys: bool, seed: int
) -> None:
    rotate = cuda_kernels.require_kernel("attention.rope", "rotary_embedding")
    with checking.checked_cuda() as check:
        device, count = check.device, len(positions)
        queries = draw_rows(seed, count, heads * 2 * HEAD, device)
        keys = draw_rows(seed + 1, count, heads * HEAD, device)
        angles = make_angles(rotated, device).to(torch.bfloat16)
        wanted = [
            rotate_heads(rows.view(count, -1, HEAD), angles, positions, is_neox)
            for rows in (queries, keys)
        ]
        rotate(
            torch.tensor(positions, device=device),
            queries,
            keys if has_keys else None,
            HEAD,
            angles,
            is_neox,
        )
        expect_close(queries.view(count, -1, HEAD), wanted[0])
        if has_keys:
            expect_close(keys.view(count, -1, HEAD), wanted[1])


@given(
    positions=positions,
    heads=heads,
    wide=st.booleans(),
    slots=st.permutations(range(SLOTS)),
    has_store=st.booleans(),
    seed=cuda_kernels.seeds,
)
def test_rotated_keys_are_stored_with_their_values(
    positions: list[int], heads: int, wide: bool, slots: list[int], has_store: bool, seed: int
) -> None:
    rotate = cuda_kernels.require_kernel("attention.rope", "apply_rope_inplace")
    rotate_and_store = cuda_kernels.require_kernel(
        "attention.rope", "apply_rope_inplace_with_kvcache"
    )
    with checking.checked_cuda() as check:
        device, count = check.device, len(positions)
        kind = torch.int64 if wide else torch.int32
        queries = draw_rows(seed, count, 2 * heads * HEAD, device).view(count, -1, HEAD)
        keys = draw_rows(seed + 1, count, heads * HEAD, device).view(count, -1, HEAD)
        values = draw_rows(seed + 2, count, heads * HEAD, device).view(count, -1, HEAD)
        angles = make_angles(HEAD, device)
        wanted = [rotate_heads(rows, angles, positions, True) for rows in (queries, keys)]
        places = torch.tensor(positions, dtype=kind, device=device)
        if has_store:
            shape = SLOTS, heads * HEAD
            caches = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2)]
            own = slots[:count]
            rotate_and_store(
                queries,
                keys,
                values,
                *caches,
                angles,
                places,
                torch.tensor(own, dtype=kind, device=device),
                is_neox=True,
            )
            stored = [torch.zeros_like(cache) for cache in caches]
            stored[0][own], stored[1][own] = keys.view(count, -1), values.view(count, -1)
            assert caches[0].equal(stored[0])
            assert caches[1].equal(stored[1])
        else:
            rotate(queries, keys, angles, places, is_neox=True)
        expect_close(queries, wanted[0])
        expect_close(keys, wanted[1])


@given(
    positions=positions,
    heads=heads,
    slots=st.permutations(range(SLOTS)),
    scale=st.sampled_from([1.0, 0.5]),
    seed=cuda_kernels.seeds,
)
def test_a_fused_projection_is_rotated_scaled_and_stored(
    positions: list[int], heads: int, slots: list[int], scale: float, seed: int
) -> None:
    run = cuda_kernels.require_kernel("attention.rope", "bf16_rope_scale_store")
    with checking.checked_cuda() as check:
        device, count, own = check.device, len(positions), slots[: len(positions)]
        fused = draw_rows(seed, count, 4 * heads * HEAD, device)
        queries = torch.empty(count, 2 * heads * HEAD, dtype=torch.bfloat16, device=device)
        caches = [
            torch.zeros(SLOTS, heads, HEAD, dtype=torch.bfloat16, device=device) for _ in range(2)
        ]
        angles = make_angles(HEAD, device).to(torch.bfloat16)
        run(
            fused,
            queries,
            *caches,
            angles,
            torch.tensor(positions, device=device),
            torch.tensor(own, device=device),
            scale,
        )
        sizes = [2 * heads * HEAD, heads * HEAD, heads * HEAD]
        parts = [part.reshape(count, -1, HEAD) for part in fused.split(sizes, -1)]
        expect_close(queries.view(count, -1, HEAD), rotate_heads(parts[0], angles, positions, True))
        keys = rotate_heads(parts[1], angles, positions, True)
        for place, slot in enumerate(own):
            if slot:  # slot 0 is that of padding
                expect_close(caches[0][slot], keys[place])
                assert caches[1][slot].equal((parts[2][place].float() * scale).to(torch.bfloat16))
        untouched = [slot for slot in range(SLOTS) if slot not in own or not slot]
        assert not caches[0][untouched].any()
        assert not caches[1][untouched].any()


@given(
    positions=positions,
    queries=st.integers(1, 2),
    keys=st.integers(1, 2),
    values=st.integers(0, 2),
    seed=cuda_kernels.seeds,
)
def test_heads_are_normed_before_they_are_rotated(
    positions: list[int], queries: int, keys: int, values: int, seed: int
) -> None:
    run = cuda_kernels.require_kernel("attention.fused_qknorm_rope", "fused_qk_norm_rope")
    with checking.checked_cuda() as check:
        device, count = check.device, len(positions)
        fused = draw_rows(seed, count, (queries + keys + values) * HEAD, device)
        weights = [draw_rows(seed + n, 1, HEAD, device)[0] for n in (1, 2)]
        wanted = fused.clone().view(count, -1, HEAD).float()
        wanted[:, :queries] = normalize_rows(wanted[:, :queries], weights[0])
        wanted[:, queries : queries + keys] = normalize_rows(
            wanted[:, queries : queries + keys], weights[1]
        )
        angles = make_angles(HEAD, device)
        turned = rotate_heads(wanted[:, : queries + keys], angles, positions, True)
        wanted[:, : queries + keys] = turned
        run(
            fused,
            queries,
            keys,
            values,
            HEAD,
            1e-6,
            *weights,
            10000.0,
            True,
            torch.tensor(positions, dtype=torch.int32, device=device),
            1.0,
            1.0,
            1.0,
            1.0,
        )
        expect_close(fused.view(count, -1, HEAD), wanted)


@given(positions=positions, heads=heads, inverse=st.booleans(), seed=cuda_kernels.seeds)
def test_the_tail_of_a_latent_head_is_rotated(
    positions: list[int], heads: int, inverse: bool, seed: int
) -> None:
    run = cuda_kernels.require_kernel("attention.dsv4.norm_rope", "fused_rope_inplace")
    with checking.checked_cuda() as check:
        device, count = check.device, len(positions)
        queries = draw_rows(seed, count * heads, HEAD, device).view(count, heads, HEAD)
        keys = draw_rows(seed + 1, count, HEAD, device).view(count, 1, HEAD)
        angles = make_angles(HEAD, device)
        if inverse:
            signed = torch.cat([angles[:, : HEAD // 2], -angles[:, HEAD // 2 :]], -1)
        else:
            signed = angles
        wanted = [rotate_heads(rows, signed, positions, False) for rows in (queries, keys)]
        freqs = torch.complex(*angles.chunk(2, -1))
        run(queries, keys, freqs, torch.tensor(positions, device=device), inverse)
        expect_close(queries, wanted[0])
        expect_close(keys, wanted[1])


def make_angles(rotated: int, device: str) -> torch.Tensor:
    """Return each position's cosines, and its sines behind them."""
    frequencies = 10000.0 ** (-torch.arange(0, rotated, 2) / rotated)
    angles = torch.outer(torch.arange(POSITIONS), frequencies)
    return torch.cat([angles.cos(), angles.sin()], -1).to(device)


def rotate_heads(
    rows: torch.Tensor, angles: torch.Tensor, positions: list[int], is_neox: bool
) -> torch.Tensor:
    """Rotate [token, head, channel] in float32; a pair is two halves apart, or two neighbours."""
    rotated = angles.shape[-1]
    cosines, sines = (part[:, None] for part in angles[positions].float().chunk(2, -1))
    result = rows.float().clone()
    pairs = result[..., :rotated]
    first, second = pairs.chunk(2, -1) if is_neox else (pairs[..., 0::2], pairs[..., 1::2])
    turned = first * cosines - second * sines, second * cosines + first * sines
    if is_neox:
        result[..., :rotated] = torch.cat(turned, -1)
    else:
        result[..., :rotated] = torch.stack(turned, -1).flatten(-2)
    return result


def normalize_rows(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    exact = rows.float()
    scale = (exact.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return exact * scale * weight.float()


def expect_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.02, atol=0.04)


def draw_rows(seed: int, rows: int, width: int, device: str) -> torch.Tensor:
    return cuda_kernels.draw_normal(seed, rows, width, device=device)
