"""Writing dequantised keys into a workspace of any size.

THE INVARIANTS IN PLAIN WORDS
- A token's row is written to its own place however many values lie before it: a workspace of more
  than four million rows of 512 is larger than 2^31 values.

No toggle covers this. dequantize_k_cache_paged overflows there from 0.5.13 to 0.5.18 and is right
from 0.5.20 on; its sibling that gathers keys as fp8, new in 0.5.20, still overflows in 0.5.23.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import dsv4_keys as adapter
from fixtures import int64_indices
from harness import checking

ROWS = st.sampled_from((0, int64_indices.BOUNDARY, int64_indices.BOUNDARY)).flatmap(
    lambda boundary: int64_indices.rows_near(boundary, adapter.WIDTH)
)


@pytest.fixture(autouse=True, scope="module")
def _the_kernels_are_here() -> None:
    int64_indices.require_sparse_prefill()


@pytest.mark.xfail(
    adapter.ROWS_OVERFLOW,
    strict=True,
    raises=AssertionError,
    reason="upstream: dequantised rows are found in 32 bits, from 0.5.13 to 0.5.18",
)
@given(row=ROWS, keys=adapter.keys(st.just(0), max_count=1))
def test_a_dequantised_row_is_written_where_it_belongs(
    row: int, keys: adapter.QuantisedKeys
) -> None:
    with checking.checked() as check:
        check.run_only(adapter.KERNEL, [(row // adapter.count_tokens_per_program(),)])
        case = adapter.FarOutputRow(keys, row, torch.bfloat16, check.device)
        adapter.dequantise_rows(case.cache, case.ids, keys.page_size, case.out)
        adapter.assert_is_key(case.out[row, 0], *keys.make_key_bytes(0))


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="the gather of keys as fp8 finds its rows in 32 bits in every release up to 0.5.23",
)
@given(row=ROWS, keys=adapter.keys(st.just(0), max_count=1))
def test_a_row_gathered_as_fp8_is_written_where_it_belongs(
    row: int, keys: adapter.QuantisedKeys
) -> None:
    kind = adapter.get_gather_dtype()
    with checking.checked() as check:
        near = adapter.FarOutputRow(keys, 0, kind, check.device)
        adapter.gather_as_fp8(near.cache, near.ids, keys.page_size, near.out)
        check.run_only(adapter.GATHER_KERNEL, [(row,)])
        far = adapter.FarOutputRow(keys, row, kind, check.device)
        adapter.gather_as_fp8(far.cache, far.ids, keys.page_size, far.out)
        assert adapter.has_same_bits(far.out[row], near.out[0])
