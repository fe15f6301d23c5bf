"""Which slots FlashAttention reads where a target model verifies trees of drafts.

THE INVARIANTS IN PLAIN WORDS

1. One half of the attention reads the prefix of each request. The other reads, for each draft, the
   drafts on the way from the root of its tree to it, in their order: no sibling's, no other
   request's. That holds with a graph, whatever an earlier batch left in it, and without one.
2. Layers that look at a window read both halves in one row, where the window's own pool has them.
3. Queries and keys end where the rows before have ended.
4. Padding a batch up to a graph's size changes nothing for its requests, and asks the mask nothing.
5. Nothing is written behind the rows of the batch: a larger graph has these.
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


def fence(check: Any, batch: DraftBatch) -> None:
    """A program names its own request's pages in its own row, and reads that request's alone."""

    def own_row(launch: Any, request: int, block: int, _: int) -> Any:
        return request, slice(0, -(-batch.lengths[request] // batch.page))

    def own_tokens(launch: Any, request: int, block: int, _: int) -> Any:
        return batch.row_of[request], slice(0, batch.lengths[request], batch.page)

    check.allow_argument(KERNEL, "page_table_ptr", write=own_row, read=lambda *program: None)
    check.allow_argument(KERNEL, "req_to_token_ptr", read=own_tokens, write=lambda *program: None)


def each_draft_reads_its_path(one: Any, batch: DraftBatch, forest: tuple[ParentTree, ...]) -> None:
    """What the two halves say of the requests, the padding aside."""
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
        fence(check, batch)
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
        if not known and flash.HAS_SINGLE_ENTRY:  # before, the host always knew
            forward.seq_lens_cpu = None
        one.init_forward_metadata(forward)
        each_draft_reads_its_path(one, batch, forest)
        if windows:
            each_draft_finds_its_window(one, batch, forest, window)
