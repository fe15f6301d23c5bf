"""The slots that FlashAttention reads when a target model verifies trees of drafts.

THE INVARIANTS IN PLAIN WORDS

1. One half of the attention reads the prefix of each request. The other reads, for each draft, the
   drafts on the path from the root of its tree to it, in their order: no sibling's, no other
   request's. That holds with a graph, whatever an earlier batch left in it, and without one.
2. Layers with a window read both halves in one row, at their slots in the window's own pool.
3. The ends of queries and keys are the running sums of the rows.
4. Padding a batch up to a graph's size changes nothing for its requests, and reads no mask.
5. Nothing is written past the rows of the batch: those belong to a larger graph.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fixtures import flash_attention as flash
from fixtures import verified_trees as trees
from fixtures.attention_graphs import MOVES_PAGES, padded_batches
from fixtures.draft_batches import DraftBatch
from fixtures.verified_trees import ParentTree
from fixtures.window_pools import WindowPool
from harness import checking

KERNEL = "create_trtllm_mha_kv_indices_triton"


def allow_accesses(check: Any, batch: DraftBatch) -> None:
    """Allow a program to write its own request's row, and to read that request's pages."""

    def own_row(launch: Any, request: int, block: int, _: int) -> Any:
        return request, slice(0, -(-batch.lengths[request] // batch.page))

    def own_tokens(launch: Any, request: int, block: int, _: int) -> Any:
        return batch.row_of[request], slice(0, batch.lengths[request], batch.page)

    check.allow_argument(KERNEL, "page_table_ptr", write=own_row, read=lambda *program: None)
    check.allow_argument(KERNEL, "req_to_token_ptr", read=own_tokens, write=lambda *program: None)


def each_draft_reads_its_path(one: Any, batch: DraftBatch, forest: tuple[ParentTree, ...]) -> None:
    """Check both halves of the requests' reads, without the padding."""
    first, second = one.forward_metadata, one.forward_metadata_spec_decode_expand
    count = len(forest)
    assert (
        flash.list_read_slots(first, batch.page)[:count] == flash.list_request_slots(batch)[:count]
    )
    drafts = trees.list_draft_reads(batch, forest)
    assert flash.list_read_slots(second, 1)[: len(drafts)] == drafts
    flash.assert_counts_add_up(first, [batch.steps] * len(batch.lengths))
    flash.assert_counts_add_up(second, [1] * len(batch.lengths) * batch.steps)


def each_draft_finds_its_window(
    one: Any, batch: DraftBatch, forest: tuple[ParentTree, ...], window: WindowPool | None
) -> None:
    metadata = one.forward_metadata.swa_spec_metadata
    rows = trees.list_all_reads(batch, forest)
    expected = rows if window is None else window.to_window_slots(rows)
    assert flash.list_read_slots(metadata, 1)[: len(rows)] == expected
    flash.assert_counts_add_up(metadata, [1] * len(batch.lengths) * batch.steps)


WINDOW_POOLS = st.booleans() if MOVES_PAGES else st.just(False)


@given(batch=padded_batches(), data=st.data())
def test_each_draft_reads_its_prefix_and_its_path(batch: DraftBatch, data: st.DataObject) -> None:
    forest = data.draw(trees.trees(batch))
    with checking.checked() as check:
        one = trees.make_backend(batch, check.device, False, None)
        forward = trees.make_forward_batch(one, batch, forest)
        flash.capture_graph(one, forward, batch.slots, batch.steps)
        halves = (
            flash.fill_stale(one.forward_metadata),
            flash.fill_stale(one.forward_metadata_spec_decode_expand),
        )
        allow_accesses(check, batch)
        flash.replay_graph(one, forward)
        each_draft_reads_its_path(one, batch, forest)
        for canaries in halves:
            canaries.assert_untouched()


@given(batch=padded_batches(pages=st.just(1)), own_pool=WINDOW_POOLS, data=st.data())
def test_a_window_finds_both_halves_in_one_row(
    batch: DraftBatch, own_pool: bool, data: st.DataObject
) -> None:
    forest = data.draw(trees.trees(batch))
    with checking.checked() as check:
        window = WindowPool(batch, check.device) if own_pool else None
        one = trees.make_backend(batch, check.device, True, window)
        forward = trees.make_forward_batch(one, batch, forest)
        flash.capture_graph(one, forward, batch.slots, batch.steps)
        kinds = (
            one.forward_metadata,
            one.forward_metadata_spec_decode_expand,
            one.forward_metadata.swa_spec_metadata,
        )
        halves = [flash.fill_stale(metadata) for metadata in kinds]
        flash.replay_graph(one, forward)
        each_draft_reads_its_path(one, batch, forest)
        each_draft_finds_its_window(one, batch, forest, window)
        for canaries in halves:
            canaries.assert_untouched()


@given(
    batch=flash.batches(pages=st.just(1)),
    windows=st.booleans(),
    own_pool=WINDOW_POOLS,
    known=st.booleans(),
    data=st.data(),
)
def test_the_same_without_a_graph(
    batch: DraftBatch, windows: bool, own_pool: bool, known: bool, data: st.DataObject
) -> None:
    forest = data.draw(trees.trees(batch))
    with checking.checked() as check:
        window = WindowPool(batch, check.device) if own_pool and windows else None
        one = trees.make_backend(batch, check.device, windows, window)
        forward = trees.make_forward_batch(one, batch, forest)
        if not known and flash.HAS_SINGLE_ENTRY:  # before, the lengths were always on the host
            forward.seq_lens_cpu = None
        one.init_forward_metadata(forward)
        each_draft_reads_its_path(one, batch, forest)
        if windows:
            each_draft_finds_its_window(one, batch, forest, window)
