"""The last drafts of a request that has nearly filled its context.

THE INVARIANTS IN PLAIN WORDS
- A request may be so close to the longest context that its tree of drafts reaches past it. Its row
  of a captured graph's table still holds all of its prefix and all of its drafts; no row overruns
  the next one, and the last row does not overrun the table.

No toggle covers this: 0.5.9 to 0.5.12 write past the row, 0.5.13 to 0.5.15 stop on an assertion.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import hybrid_pools
from fixtures import swa_translation as adapter
from harness import checking


@pytest.mark.xfail(
    adapter.ROWS_END_WITH_THE_CONTEXT,
    strict=True,
    raises=AssertionError,
    reason="upstream: a graph's row is no longer than the longest context, from 0.5.9 to 0.5.15",
)
@given(batch=hybrid_pools.batches(max_requests=2), data=st.data())
def test_a_graphs_row_holds_the_drafts_past_the_longest_context(
    batch: hybrid_pools.VerifyBatch, data: st.DataObject
) -> None:
    order = list(range(len(batch.requests)))
    beyond = data.draw(
        st.integers(1, batch.drafts_per_request - 1), label="drafts past the context"
    )
    with checking.checked() as check:
        backend = adapter.make_flash_backend(hybrid_pools.HybridPools(batch, check.device, beyond))
        backend.capture_graph(len(order))
        adapter.assert_metadata_matches(backend.pools, order, backend.replay_graph(order))
