"""DeepSeek V4's sparse prefill: the keys that a query reads, whatever the last forward cached.

THE INVARIANTS
- A query at position p reads its window, the last 128 tokens up to p, of its own request. In a
  layer with blocks of four it also reads the blocks that the layer's indexer chose, at most (p + 1)
  // 4; in one with blocks of 128, all (p + 1) // 128; in one without blocks, nothing more.
- A row of indices is blocks, then window, then -1 up to a multiple of 128; its length counts the
  first two. A row after the last query reads nothing. Queries may be counted from any start.
- One chunk never reads another's cache: not in the next forward, not after a copy, not in a graph's
  replay (a known bug of 0.5.13 and 0.5.14).
- The other requests of the chunk, their order, and the amount of padding change nothing.
- The kernel of a forward:

      forward mode                               query rows  switch  kernel
      EXTEND, MIXED, SPLIT_PREFILL, DLLM_EXTEND  > 11673     any     flash_mla_sparse_fwd
      the same                                   <= 11673    on      flash_mla_sparse_fwd
      the same                                   <= 11673    off     flash_mla_with_kvcache
      all others (decode, idle, speculative)     any         any     flash_mla_with_kvcache

  The switch is SGLANG_OPT_FLASHMLA_SPARSE_PREFILL. (On a machine without SM120, which has a kernel
  of its own, and without context parallelism.) Only trtllm-gen reads a uniform FP8 cache.
- A workspace is prepared before the layers of a forward that goes to flash_mla_sparse_fwd, and of
  no other; all others have a page table instead.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import sparse_prefill as adapter
from fixtures.sparse_prefill import CombineCall, PrefillScenario, SparseChunk
from harness import checking
from harness.guards import skip_not_applicable

REPLAYED = pytest.mark.xfail(
    adapter.REPLAY_KEEPS_THE_CACHE,
    strict=True,
    reason="upstream: a graph's replay keeps the chunk cache of the capture, until 0.5.15",
)


@pytest.fixture(autouse=True)
def sparse_prefill() -> None:
    if not adapter.HAS_SPARSE_PREFILL:
        skip_not_applicable("this release has no sparse prefill")


def every_layer_reads_its_own(scenario: PrefillScenario) -> None:
    with checking.checked() as check, adapter.set_up_backend(check, scenario.window) as world:
        for step, reads in zip(scenario.steps, world.run_scenario(scenario), strict=True):
            assert [read.kernel for read in reads] == ["sparse"] * len(step.layers)
            for layer, (ratio, read) in enumerate(zip(step.layers, reads, strict=True)):
                wanted = adapter.list_expected_reads(
                    step.chunk, layer, ratio, scenario.window, world.full_to_swa
                )
                for row, (got, due) in enumerate(zip(read.rows, wanted, strict=True)):
                    assert got == due, f"{step}, layer {layer}, row {row}"


@pytest.mark.guards("25418-sparse-prefill-switch")
@given(adapter.scenarios())
def test_every_query_reads_its_window_and_its_blocks(scenario: PrefillScenario) -> None:
    every_layer_reads_its_own(scenario)


@pytest.mark.guards("25418-chunk-cache")
@given(adapter.scenarios("copied", "copied", "new"))
def test_no_forward_reads_what_another_left(scenario: PrefillScenario) -> None:
    every_layer_reads_its_own(scenario)


@REPLAYED
@given(adapter.scenarios("replayed", "copied", "replayed"))
def test_no_replay_reads_what_the_capture_left(scenario: PrefillScenario) -> None:
    every_layer_reads_its_own(scenario)


@pytest.mark.guards("25418-sparse-prefill-switch")
@given(adapter.chunks(), st.sampled_from((4, 128, 0, 4)), adapter.orders(3))
def test_a_request_reads_the_same_in_any_company(
    chunk: SparseChunk, ratio: int, order: tuple[tuple[int, ...], int]
) -> None:
    """Check that shuffling, splitting and padding the chunk changes nothing for any request."""
    whole = keys_read(chunk, ratio)
    apart: dict[int, list[Any]] = {}
    for part in chunk.split_chunk(order):
        apart |= keys_read(part, ratio)
    assert whole == apart


def keys_read(chunk: SparseChunk, ratio: int) -> dict[int, list[Any]]:
    """Return the keys of each request's queries in a layer of this ratio."""
    step = adapter.PrefillStep("new", chunk, (ratio,))
    with checking.checked() as check, adapter.set_up_backend(check) as world:
        ((read,),) = world.run_scenario(PrefillScenario((step,)))
    assert read.kernel == "sparse"
    return adapter.group_by_request(chunk, read.rows)


@given(adapter.rows())
def test_a_row_is_blocks_then_window_then_nothing(case: CombineCall) -> None:
    with checking.checked() as check:
        assert adapter.run_combine(check, case) == adapter.compute_expected_rows(case)


MODES = st.just("EXTEND") | st.sampled_from(adapter.FORWARD_MODES)


@pytest.mark.guards("25418-sparse-prefill-switch")
@given(MODES, st.sampled_from((0, 4, 128)), adapter.query_counts(), st.booleans())
def test_the_kernel_is_the_one_that_the_table_says(
    mode: str, ratio: int, queries: int, switched_on: bool
) -> None:
    with checking.checked() as check:
        kernel = adapter.find_kernel(check, mode, ratio, queries, switched_on)
    assert kernel == adapter.choose_kernel(mode, queries, switched_on)


@pytest.fixture
def preparing() -> None:
    if not adapter.HAS_PREPARED:
        skip_not_applicable("this release prepares nothing before the layers")


@pytest.mark.usefixtures("preparing")
@given(MODES, adapter.query_counts(), st.booleans(), st.booleans())
def test_what_is_prepared_is_for_the_kernel_that_runs(
    mode: str, queries: int, switched_on: bool, uniform: bool
) -> None:
    with checking.checked() as check:
        kernel = adapter.find_kernel(check, mode, 4, queries, switched_on, uniform)
        workspace, pages = adapter.inspect_preparation(check, mode, queries, switched_on, uniform)
    assert kernel == adapter.choose_kernel(mode, queries, switched_on, uniform)
    assert workspace == (kernel == "sparse")
    assert pages or adapter.choose_kernel(mode, 0, switched_on, uniform) == "sparse"
