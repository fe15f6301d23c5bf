"""What is ordered by streams and events, and what a captured graph needs to be there.

THE INVARIANTS IN PLAIN WORDS

1. A launch on one stream that uses memory of another is behind the launches that wrote it, and that
   memory is not given away before the launch has ended.
2. Memory that a captured graph uses lives as long as the graph.

The values are right on a machine that runs launches one after the other. So each guard asserts them
and lets the session check the order.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import launch_order as adapter

pytestmark = pytest.mark.runs_on("virtual")
SIZES = st.integers(1, 24)


@pytest.mark.guards("34076")
@given(requests=SIZES)
def test_the_indices_of_a_mixed_batch_live_until_the_forward_has_read_them(requests: int) -> None:
    with adapter.check_order("streams"):
        resolved = adapter.resolve_mixed_batch(requests, free=True)
        assert resolved.tolist() == [0, 1, 2, *range(0, 2 * requests, 2)]


@pytest.mark.guards("36738")
def test_a_load_from_the_host_waits_for_the_forward_that_writes_its_pages() -> None:
    with adapter.check_order("streams"):
        pool = adapter.LoadedPages().load_behind_a_forward()
        assert pool.tolist() == [[0.0] * 8, [7.0] * 8, [0.0] * 8, [0.0] * 8]


@pytest.mark.guards("dsv4-source-buffers-freed")
@given(first=SIZES, more=SIZES)
def test_buffers_that_grow_leave_captured_graphs_their_memory(first: int, more: int) -> None:
    with adapter.check_order("graphs"):
        buffers = adapter.GrowingBuffers()
        graph, out = buffers.capture(first)
        larger, _ = buffers.capture(first + more)
        larger.replay()
        graph.replay()
        assert out.tolist() == [[float(first)] * buffers.LATENT] * first
