"""The stand-ins of the rotary embedding turn each pair of a head by its position's angle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sanitizer.plugins.for_sglang.operators.rope import (
    apply_rope_pos_ids_cos_sin_cache,
    rotary_embedding,
)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.sampled_from([4, 8]), st.booleans(), st.integers(0, 2**31))
def test_a_pair_turns_by_its_angle_and_the_rest_stays(
    tokens: int, width: int, interleave: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    angles = torch.rand(16, width // 2) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1)
    positions = torch.randint(0, 16, (tokens,))
    q, k, v = torch.randn(tokens, 3, 8), torch.randn(tokens, 2, 8), torch.randn(tokens, 2, 8)
    q_rope, k_rope = torch.empty_like(q), torch.empty_like(k)
    k_buffer, v_buffer = torch.zeros(20, 2, 8), torch.zeros(20, 2, 8)
    slots = torch.randperm(20)[:tokens]
    apply_rope_pos_ids_cos_sin_cache(
        q, k, q_rope, k_rope, cos_sin, positions, interleave, False, v, k_buffer, v_buffer, slots
    )

    def turn(heads: torch.Tensor) -> torch.Tensor:
        turned, part = heads.clone(), heads[..., :width]
        first, second = (slice(0, None, 2), slice(1, None, 2))
        if not interleave:
            first, second = slice(0, width // 2), slice(width // 2, width)
        pair = torch.complex(part[..., first], part[..., second])
        pair = pair * torch.polar(torch.ones(tokens, width // 2), angles[positions])[:, None]
        turned[..., :width][..., first] = pair.real
        turned[..., :width][..., second] = pair.imag
        return turned

    torch.testing.assert_close(q_rope, turn(q), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(k_buffer[slots], turn(k), rtol=1e-5, atol=1e-5)
    assert torch.equal(v_buffer[slots], v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_are_rounded_to_the_type_of_heads_and_angles(dtype: torch.dtype) -> None:
    """As in `pos_enc.cuh`, whose numbers all have the type of the heads."""
    torch.manual_seed(0)
    heads, cos_sin = torch.randn(9, 64).to(dtype), torch.randn(9, 32).to(dtype)
    (cos, sin), (first, second) = cos_sin.chunk(2, dim=-1), heads[:, :32].chunk(2, dim=-1)
    expected = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    rotary_embedding(torch.arange(9), heads, None, 64, cos_sin)
    assert torch.equal(heads[:, :32], expected)
