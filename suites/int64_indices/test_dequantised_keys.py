"""Reading quantised keys out of a paged cache of any size.

THE INVARIANTS IN PLAIN WORDS
- A token's key is read from its page and its index there, however many bytes lie before it: below
  2^31 and 2^32 bytes, across them, and beyond.
- Its value follows from its bytes, to the bit: 448 codes of e4m3 under 7 scales, each a power of
  two for 64 of them, then 64 bfloat16 unchanged. That holds for each of the 256 codes and of the
  256 scales; a NaN code stays NaN.
- Each row of the output is one entry of the list of tokens, written by its own program and by no
  other; the rest of a larger workspace stays unchanged.
- A key's location does not change its value.
- Nothing is written past the seven tiles. In the model's own rows the rotary part follows and would
  hide such a write; if it is narrower, a neighbouring row shows it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import dsv4_keys as adapter
from fixtures import int64_indices
from harness import checking

KINDS = st.sampled_from((torch.int32, torch.int64))


@pytest.fixture(autouse=True, scope="module")
def _the_kernels_are_here() -> None:
    int64_indices.require_sparse_prefill()


def dequantise_rows(
    keys: adapter.QuantisedKeys, order: list[int], kind: torch.dtype, check: Any
) -> Any:
    """Return the rows of these tokens from the real kernel."""
    check.allow_argument(adapter.KERNEL, "output_ptr", write=adapter.get_program_rows)
    cache = adapter.make_cache(keys, check.device)
    ids = adapter.make_token_ids(keys, order, check.device, kind)
    rows = adapter.dequantise_rows(cache, ids, keys.page_size)
    assert [launch.kernel for launch in check.launches] == [adapter.KERNEL]
    check.assert_written(rows)
    return rows


@pytest.mark.guards("25418-dequant-int64")
@given(keys=adapter.keys(), kind=KINDS, data=st.data())
def test_a_key_is_found_however_many_bytes_lie_before_it(
    keys: adapter.QuantisedKeys, kind: torch.dtype, data: st.DataObject
) -> None:
    numbers = st.integers(0, len(keys.locations) - 1)
    order = data.draw(st.lists(numbers, min_size=1, max_size=3), label="order")
    with checking.checked() as check:
        rows = dequantise_rows(keys, order, kind, check)
        for row, number in zip(rows, order, strict=True):
            adapter.assert_is_key(row, *keys.make_key_bytes(number))


@pytest.mark.guards("25418-dequant-int64")
@given(keys=adapter.keys(max_count=2))
def test_where_a_key_lies_changes_nothing_of_what_it_is(keys: adapter.QuantisedKeys) -> None:
    near = adapter.move_to_front(keys)
    order = list(range(len(keys.locations)))
    with checking.checked() as check:
        far_rows = dequantise_rows(keys, order, torch.int64, check)
    with checking.checked() as check:
        near_rows = dequantise_rows(near, order, torch.int64, check)
    assert adapter.has_same_bits(far_rows, near_rows)


def test_every_code_and_every_scale() -> None:
    keys = adapter.AllCodesKeys()
    with checking.checked() as check:
        rows = dequantise_rows(keys, list(range(len(keys.locations))), torch.int32, check)
        for number, row in enumerate(rows):
            adapter.assert_is_key(row, *keys.make_key_bytes(number))


@given(
    keys=adapter.keys(st.just(0), max_count=2),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
)
def test_the_rest_of_a_larger_workspace_stays_as_it_was(
    keys: adapter.QuantisedKeys, before: int, after: int
) -> None:
    order = list(range(len(keys.locations)))
    with checking.checked() as check:
        total = before + len(order) + after
        workspace = torch.full((total, 1, adapter.WIDTH), 7.0, dtype=torch.bfloat16)
        workspace = workspace.to(check.device)
        out = workspace[before : before + len(order)]
        ids = adapter.make_token_ids(keys, order, check.device, torch.int32)
        cache = adapter.make_cache(keys, check.device)
        rows = adapter.dequantise_rows(cache, ids, keys.page_size, out)
        for number, row in enumerate(rows):
            adapter.assert_is_key(row, *keys.make_key_bytes(number))
        rest = torch.cat((workspace[:before], workspace[before + len(order) :]))
        assert rest.eq(7.0).all()


@given(keys=adapter.keys(st.just(0), rotary=adapter.ROPE // 2))
def test_there_are_seven_tiles_in_front_of_a_narrower_rotary_part(
    keys: adapter.QuantisedKeys,
) -> None:
    order = list(range(len(keys.locations)))
    with checking.checked() as check, adapter.patch_rotary_size(keys.rotary):
        rows = dequantise_rows(keys, order, torch.int32, check)
        for row, number in zip(rows, order, strict=True):
            adapter.assert_is_key(row, *keys.make_key_bytes(number))
