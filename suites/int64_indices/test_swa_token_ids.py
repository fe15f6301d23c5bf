"""The ids of the keys in each request's sliding window, for a token table of any size.

THE INVARIANTS IN PLAIN WORDS
- For each request in turn: the slots of the tokens that any of its queries may see, from the token
  table through the pools' map into the sliding-window pool, in order.
- They are read from the request's own row however many entries lie before it: a context of a
  million tokens puts request 2048 at 2^31. The full pool may be as large as 32-bit slots allow.
- They are written from the start of the request's share, across 2^31 too.
- The first position, the count and the running sum of the counts are those of the windows.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import int64_indices as adapter
from harness import checking


@pytest.fixture(autouse=True, scope="module")
def _the_kernels_are_here() -> None:
    adapter.require_sparse_prefill()


@pytest.mark.guards("25418-swa-token-ids-int64")
@given(windows=adapter.windows())
def test_ids_are_read_from_a_row_past_any_boundary(windows: adapter.WindowBatch) -> None:
    with checking.checked() as check:
        case = adapter.WindowTokenIds(windows, check.device)
        check.run_only(adapter.SWA_KERNEL, case.list_programs())
        ids, first, counts, offsets = case.build_token_ids()
        assert [launch.kernel for launch in check.launches] == [adapter.SWA_KERNEL]
        check.assert_written(ids)
        wanted = [windows.count_gathered(request) for request in windows.requests]
        assert counts.tolist() == wanted
        assert offsets.tolist() == list(itertools.accumulate(wanted, initial=0))
        assert first.tolist() == [
            request.length - count for request, count in zip(windows.requests, wanted, strict=True)
        ]
        assert ids.tolist() == case.expected


# Not a guard: the kernel adds an offset and an index to a pointer, one after the other, so that
# neither can overflow in 32 bits. Only the row above is a product.
@given(windows=adapter.windows(st.just(0)), back=st.integers(0, 3))
def test_ids_are_written_across_the_boundary(windows: adapter.WindowBatch, back: int) -> None:
    with checking.checked() as check:
        case = adapter.WindowTokenIds(windows, check.device)
        check.run_only(adapter.SWA_KERNEL, case.list_programs())
        counts = [windows.count_gathered(request) for request in windows.requests]
        first = adapter.BOUNDARY - 1 - back - sum(counts[:-1])
        offsets = list(itertools.accumulate(counts[:-1], initial=first))
        out = checking.virtual_zeros((adapter.BOUNDARY + 64,), torch.int32, check.device)
        case.launch_kernel_into(out, offsets)
        assert out[first : first + len(case.expected)].tolist() == case.expected


@given(windows=adapter.windows(), data=st.data())
def test_requests_in_another_order_have_the_same_ids(
    windows: adapter.WindowBatch, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(windows.requests), label="order")
    with checking.checked() as check:
        case = adapter.WindowTokenIds(windows, check.device)
        check.run_only(adapter.SWA_KERNEL, case.list_programs())
        as_given = case.group_by_row(case.build_token_ids())
        check.run_only(adapter.SWA_KERNEL, case.list_programs(order))
        reordered = case.group_by_row(case.build_token_ids(order), order)
    assert as_given == reordered
