"""The keys that a decode of Triton's attention reads in a layer with a sliding window.

THE INVARIANTS IN PLAIN WORDS

1. A window's size counts the keys before a token: a prompt's mask shows a token that many and
   itself. A decode reads the same number, the current token and those before it, oldest first; a
   shorter request is read whole.
2. Requests are contiguous, and indptr gives their starts and ends.
3. The slots are those of the separate pool of layers with a window, or, without one, of the pool
   that all layers share.
4. A replayed graph reads the same.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from fixtures import decode_windows as adapter
from fixtures import flash_attention as flash
from fixtures.draft_batches import DraftBatch
from fixtures.window_pools import WindowPool
from harness import checking
from harness.guards import skip_not_applicable

LONGEST = 1100
"""More than twice the 512 slots that a program copies in a turn."""
SIZES = st.one_of(st.integers(1, 9), st.integers(1, LONGEST), st.sampled_from([510, 511, 512]))


@pytest.mark.guards("32087")
@given(batch=flash.batches(longest=LONGEST), size=SIZES, own_pool=st.booleans())
def test_a_decode_reads_its_token_and_the_window_before_it(
    batch: DraftBatch, size: int, own_pool: bool
) -> None:
    with checking.checked() as check:
        own = WindowPool(batch, check.device) if own_pool else None
        one = adapter.make_backend(batch, size, own, check.device)
        one.init_forward_metadata(flash.make_forward_batch(one, batch, ForwardMode.DECODE))
        assert one.forward_metadata.window_kv_indptr.numel() == len(batch.lengths) + 1
        assert adapter.list_read_slots(one.forward_metadata) == adapter.list_expected_slots(
            batch, size, own
        )


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="upstream: a graph's decode reads one key too few, and its buffer has room for no more",
)
@given(batch=flash.batches(longest=LONGEST), size=SIZES, own_pool=st.booleans())
def test_a_graph_reads_the_same(batch: DraftBatch, size: int, own_pool: bool) -> None:
    if not flash.HAS_SINGLE_ENTRY:
        skip_not_applicable("one method captures a graph and another replays it")
    with checking.checked() as check:
        own = WindowPool(batch, check.device) if own_pool else None
        one = adapter.make_backend(batch, size, own, check.device)
        forward = flash.make_forward_batch(one, batch, ForwardMode.DECODE)
        metadata = flash.capture_graph(one, forward, batch.slots, 1)
        metadata.window_kv_indices.fill_(flash.STALE_VALUE)
        flash.replay_graph(one, forward)
        found = adapter.list_read_slots(metadata)
        right, known = (
            adapter.list_expected_slots(batch, window, own) for window in (size, size - 1)
        )
        if found not in (right, known):
            raise ValueError(f"{found} is neither {right} nor, as it is known to be, {known}")
        assert found == right
