"""Combining a query's chosen keys with its sliding window, for a chunk of any size.

THE INVARIANTS IN PLAIN WORDS
- A query token's row holds the compressed keys that were chosen for it, as many as exist yet, then
  the keys of its sliding window, both as workspace indices; its length counts them.
- It reads and writes its own row, however many entries lie before it: around 2^31 and 2^32, by the
  number of tokens and by the stride of the rows.
- If a window is given and not computed, its keys are the given ones, and a hole stays a hole.
- A request's rows do not depend on the other requests in the chunk.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given

from fixtures import int64_indices as adapter
from harness import checking


@pytest.fixture(autouse=True, scope="module")
def _the_kernels_are_here() -> None:
    adapter.require_sparse_prefill()


def run_combine(chunk: adapter.CombineChunk, check: Any) -> adapter.CombineCase:
    case = adapter.CombineCase(chunk, check.device)
    check.run_only(adapter.COMBINE_KERNEL, case.list_programs())
    case.run_kernel()
    assert [launch.kernel for launch in check.launches] == [adapter.COMBINE_KERNEL]
    return case


def assert_combines(chunk: adapter.CombineChunk) -> None:
    with checking.checked() as check:
        case = run_combine(chunk, check)
        for token, query, position in case.list_query_tokens():
            expected = case.compute_expected_row(query, position)
            assert int(case.lengths[token]) == len(expected)
            assert case.rows[token].tolist() == expected + [-1] * (case.width - len(expected))


@pytest.mark.guards("25418-combine-int64")
@given(chunk=adapter.chunks("topk"))
def test_chosen_keys_are_read_from_a_row_past_any_boundary(chunk: adapter.CombineChunk) -> None:
    assert_combines(chunk)


@pytest.mark.guards("25418-combine-int64")
@given(chunk=adapter.chunks("rows"))
def test_combined_rows_are_written_past_any_boundary(chunk: adapter.CombineChunk) -> None:
    assert_combines(chunk)


@pytest.fixture(scope="module")
def _windows_can_be_given() -> None:
    adapter.require_given_windows()


@pytest.mark.guards("25418-combine-int64")
@pytest.mark.usefixtures("_windows_can_be_given")
@given(chunk=adapter.chunks("window"))
def test_given_windows_are_read_from_a_row_past_any_boundary(chunk: adapter.CombineChunk) -> None:
    assert_combines(chunk)


@given(chunk=adapter.chunks("rows"))
def test_a_request_has_the_same_rows_with_and_without_others(chunk: adapter.CombineChunk) -> None:
    with checking.checked() as check:
        together = run_combine(chunk, check).list_combined_rows()
    rows = []
    for query in chunk.queries:
        with checking.checked() as check:
            rows += run_combine(
                dataclasses.replace(chunk, queries=(query,)), check
            ).list_combined_rows()
    assert together == rows
