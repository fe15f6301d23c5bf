"""LoRA's kernels over segments that are empty.

THE INVARIANTS IN PLAIN WORDS
- A program of a segment without tokens does not read its adapter: the entry is left from an earlier
  batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.kernel_launches import launch_kernel, make_ints
from harness import checking

RANK = 16
SMALL = st.integers(1, 8)
STALE = st.integers(2, 10**6)  # a nonexistent adapter


def make_ones(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16, device=device)


def make_segments(device: torch.device, tokens: int, stale: int) -> dict[str, Any]:
    """Return one segment with all tokens, and an empty one."""
    return {
        "seg_indptr": make_ints(device, 0, tokens, tokens),
        "weight_indices": make_ints(device, 0, stale),
        "lora_ranks": make_ints(device, RANK, RANK),
        "permutation": make_ints(device, *range(tokens)),
        "num_segs": 2, "num_segments": 2, "scalings": torch.ones(2, device=device),
    }  # fmt: skip


@pytest.mark.guards("28371-shrink")
@given(tokens=st.integers(1, 4), stale=STALE, value=SMALL)
def test_shrinking_leaves_an_empty_segment_alone(tokens: int, stale: int, value: int) -> None:
    with checking.checked() as check:
        out = make_ones(check.device, tokens, RANK)
        launch_kernel(
            check, "_chunked_lora_shrink_kernel", (1, 2),
            x=make_ones(check.device, tokens, 16) * value,
            weights=make_ones(check.device, 2, RANK, 16), output=out, N=RANK, K=16, NUM_SLICES=1,
            BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, **make_segments(check.device, tokens, stale),
        )  # fmt: skip
        assert out.unique().tolist() == [16.0 * value]


@pytest.mark.guards("28371-expand")
@given(tokens=st.integers(1, 4), stale=STALE, value=SMALL)
def test_expanding_leaves_an_empty_segment_alone(tokens: int, stale: int, value: int) -> None:
    with checking.checked() as check:
        out = make_ones(check.device, tokens, 16)
        launch_kernel(
            check, "_chunked_lora_expand_kernel", (1, 1, 2),
            x=make_ones(check.device, tokens, RANK) * value,
            weights=make_ones(check.device, 2, 16, RANK),
            output=out, output_stride_0=16, output_stride_1=1,
            slice_offsets=make_ints(check.device, 0, 16), NUM_SLICES=1, OUTPUT_DIM=16,
            MAX_RANK=RANK,
            BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, SLICE_OFFSETS=(),
            **make_segments(check.device, tokens, stale),
        )  # fmt: skip
        assert out.unique().tolist() == [1.0 + RANK * value]


@pytest.mark.guards("28371-embedding")
@given(words=st.lists(st.integers(0, 8), min_size=1, max_size=4), stale=STALE)
def test_an_embedding_leaves_an_empty_segment_alone(words: list[int], stale: int) -> None:
    vocabulary = 9
    with checking.checked() as check:
        weights = torch.arange(vocabulary, dtype=torch.float16, device=check.device)
        out = make_ones(check.device, len(words), RANK)
        launch_kernel(
            check, "_chunked_embedding_lora_a_kernel", (2,), output=out, rank=RANK, num_loras=2,
            input_ids=torch.tensor(words, device=check.device), vocab_size=vocabulary,
            weights=weights.expand(2, RANK, vocabulary).contiguous(), BLOCK_RANK=RANK,
            w_stride_0=RANK * vocabulary, w_stride_1=vocabulary, w_stride_2=1,
            output_stride_0=RANK, output_stride_1=1,
            **make_segments(check.device, len(words), stale),
        )  # fmt: skip
        assert out.tolist() == [[float(word)] * RANK for word in words]
