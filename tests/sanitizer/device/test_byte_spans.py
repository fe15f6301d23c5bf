"""Spans of bytes, against the addresses of each element and against sets."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.sanitizer.launches.byte_spans import (
    Span,
    find_element_bytes,
    intersect_spans,
    merge_spans,
    subtract_spans,
)

SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=3)
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=6).map(
    lambda drawn: merge_spans((start, start + size) for start, size in drawn)
)


def list_bytes(spans: list[Span]) -> list[int]:
    return [byte for start, end in spans for byte in range(start, end)]


@given(sides=SIZES, dtype=st.sampled_from([torch.uint8, torch.float32]))
def test_a_tensors_bytes_are_those_of_its_elements(
    sides: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    shape, strides = [side for side, _ in sides], [stride for _, stride in sides]
    tensor = torch.empty(200, dtype=dtype).as_strided(shape, strides)
    size = tensor.element_size()
    spans = find_element_bytes(tensor, 1000).list_spans()
    assert spans is not None
    places = itertools.product(*map(range, shape))
    starts = [
        1000 + size * sum(a * b for a, b in zip(place, strides, strict=True)) for place in places
    ]
    assert list_bytes(spans) == sorted({start + byte for start in starts for byte in range(size)})


def test_a_dense_tensor_is_one_span_and_one_of_too_many_rows_has_none() -> None:
    dense = find_element_bytes(torch.empty(4, 100_000, dtype=torch.float16).t(), 64)
    assert dense.list_spans() == [(64, 64 + 800_000)]
    assert find_element_bytes(torch.empty(100_000, 4)[:, :2], 64).list_spans() is None


@given(ours=SPANS, others=SPANS)
def test_spans_are_sets_of_bytes(ours: list[Span], others: list[Span]) -> None:
    one, other = set(list_bytes(ours)), set(list_bytes(others))
    assert list_bytes(intersect_spans(ours, others)) == sorted(one & other)
    assert list_bytes(subtract_spans(ours, others)) == sorted(one - other)
