"""What the indexer of sparse attention selects in a dry run: places that a server could select."""

from __future__ import annotations

from typing import Any

import torch

from harness.sanitizer.plugins.for_sglang.sparse_attention_shapes import SHAPES

LENGTHS = torch.tensor([1, 3, 9], dtype=torch.int32, device="cuda")
TOPK = 4


def select_tokens(name: str, *arguments: Any) -> list[list[int]]:
    """Return what an operator selects of three rows of 1, 3 and 9 tokens."""
    selected: list[list[int]] = SHAPES[name](torch.zeros(3, 9), LENGTHS, *arguments).tolist()
    return selected


def test_a_row_selects_no_place_past_its_length() -> None:
    places = select_tokens("sgl_kernel.fast_topk_v2", TOPK)
    assert places == [[0, -1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]]


def test_places_behind_an_offset_are_those_of_the_rows_own_request() -> None:
    offsets = torch.tensor([0, 0, 100], dtype=torch.int32, device="cuda")
    places = select_tokens("sgl_kernel.fast_topk_transform_ragged_fused", offsets, TOPK)
    assert places == [[0, -1, -1, -1], [0, 1, 2, -1], [100, 101, 102, 103]]
    out = torch.empty(3, TOPK, dtype=torch.int32, device="cuda")
    SHAPES["jit:dpsk_v4_topk_v2.topk_transform_ragged"](None, LENGTHS, None, offsets, out)
    assert out.tolist() == places


def test_slots_are_those_of_the_request_in_whose_queries_a_row_lies() -> None:
    table = torch.tensor([range(10, 19), range(50, 59)], dtype=torch.int32, device="cuda")
    ends = torch.tensor([0, 2, 3], dtype=torch.int32, device="cuda")  # two rows, then one
    slots = select_tokens("sgl_kernel.fast_topk_transform_fused", table, ends, TOPK)
    assert slots == [[10, -1, -1, -1], [10, 11, 12, -1], [50, 51, 52, 53]]


def test_slots_of_pages_are_places_in_them() -> None:
    pages = torch.tensor([[7, 8, 9, 9, 9]] * 3, dtype=torch.int32, device="cuda")
    out = torch.empty(3, TOPK, dtype=torch.int32, device="cuda")
    transform = SHAPES["jit:dpsk_v4_topk_v2.topk_transform_paged"]
    transform(None, LENGTHS, pages, out, 2, None)
    assert out.tolist() == [[14, -1, -1, -1], [14, 15, 16, -1], [14, 15, 16, 17]]
    transform(None, LENGTHS, None, out, 2, None)
    assert out.tolist() == [[0, -1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]]
