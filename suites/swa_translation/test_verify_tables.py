"""A sliding-window layer has its own KV pool, with its own numbers for the same tokens.

THE INVARIANTS IN PLAIN WORDS
- When a tree of drafts is verified (topk > 1), every index that a sliding-window layer will use is
  a slot of the sliding-window pool, never one past its end.
- It is the slot of the right token: row by row the request's whole prefix and then the drafts on
  the path from the root to this token, each translated by the pools' own map. A token that has left
  the window is slot 0, the padding.
- The rows' lengths and their running sums count exactly that many.
- It holds for eager metadata and for a captured graph's buffers, replayed again and again with
  other requests; a graph's padding rows point at the padding slot.
- The full layers' own tables use the full pool's numbers. The indices of a sliding-window layer
  lead to the keys of exactly the tokens that a full layer reads.
- A program fills its own block of its own row as far as the row is long. For that it reads the part
  of its request's prefix and of its row's drafts that belongs there, and nothing else.
- A request's rows do not depend on the other requests of the batch or on their order.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures import hybrid_pools
from fixtures import swa_translation as adapter
from harness import checking


def backend_of(batch: hybrid_pools.VerifyBatch, check: Any) -> adapter.VerifyBackend:
    adapter.add_access_rules(check)
    return adapter.make_flash_backend(hybrid_pools.HybridPools(batch, check.device))


@pytest.mark.guards("24617")
@given(ordered_batch=hybrid_pools.batches_with_orders())
@example(ordered_batch=(hybrid_pools.LONG_BATCH, [2, 0, 1]))
def test_metadata_made_on_the_spot_names_slots_of_the_sliding_pool(
    ordered_batch: tuple[hybrid_pools.VerifyBatch, list[int]],
) -> None:
    batch, order = ordered_batch
    with checking.checked() as check:
        backend = backend_of(batch, check)
        metadata = backend.make_eager_metadata(order)
        assert adapter.KERNEL in [launch.kernel for launch in check.launches]
        adapter.assert_metadata_matches(backend.pools, order, metadata)


@pytest.mark.guards("24617")
@given(batch=hybrid_pools.batches(max_requests=2), empty=st.integers(0, 1), data=st.data())
def test_a_replayed_graph_names_slots_of_the_sliding_pool(
    batch: hybrid_pools.VerifyBatch, empty: int, data: st.DataObject
) -> None:
    replays = [data.draw(hybrid_pools.orders(batch), label="order") for _ in range(2)]
    with checking.checked() as check:
        backend = backend_of(batch, check)
        backend.capture_graph(len(batch.requests) + empty)
        for order in replays:
            metadata = backend.replay_graph(order)
            adapter.assert_metadata_matches(backend.pools, order, metadata)
            rows = adapter.list_used_slots(metadata.swa_spec_metadata)[
                len(order) * batch.drafts_per_request :
            ]
            assert {slot for row in rows for slot in row} <= {0}, "an empty place reads a real slot"


@pytest.mark.guards("24617")
@given(batch=hybrid_pools.batches(max_requests=2), graph=st.booleans())
def test_both_kinds_of_layer_find_the_keys_of_the_same_tokens(
    batch: hybrid_pools.VerifyBatch, graph: bool
) -> None:
    order = list(range(len(batch.requests)))
    with checking.checked() as check:
        backend = backend_of(batch, check)
        if graph:
            backend.capture_graph(len(order))
        metadata = backend.replay_graph(order) if graph else backend.make_eager_metadata(order)
        world = backend.pools
        full = adapter.list_full_layer_reads(backend, metadata, len(order))
        assert full == adapter.list_full_slots(world, order), "a full layer lost its own numbers"
        for slots, window_slots in zip(
            full, adapter.list_used_slots(metadata.swa_spec_metadata), strict=True
        ):
            assert len(slots) == len(window_slots)
            sliding_places = [
                place for place, slot in enumerate(world.to_window_slots(slots)) if slot
            ]
            assert max(window_slots) < world.window_slot_count, (
                f"slot {max(window_slots)} of {world.window_slot_count}"
            )
            assert world.read_token_names(
                hybrid_pools.SLIDING_LAYER, [window_slots[place] for place in sliding_places]
            ) == (
                world.read_token_names(
                    hybrid_pools.FULL_LAYER, [slots[place] for place in sliding_places]
                )
            )


@given(batch=hybrid_pools.batches(min_requests=2), data=st.data())
def test_a_requests_rows_are_its_own_whoever_else_is_there(
    batch: hybrid_pools.VerifyBatch, data: st.DataObject
) -> None:
    order = data.draw(hybrid_pools.orders(batch), label="order")
    with checking.checked() as check:
        backend = backend_of(batch, check)
        together = adapter.list_used_slots(backend.make_eager_metadata(order).swa_spec_metadata)
        backend.capture_graph(len(order))
        replayed = adapter.list_used_slots(backend.replay_graph(order).swa_spec_metadata)
        alone = [
            adapter.list_used_slots(backend.make_eager_metadata([place]).swa_spec_metadata)
            for place in order
        ]
    assert together == [row for rows in alone for row in rows]
    assert replayed == together
