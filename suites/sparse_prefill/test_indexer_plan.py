"""DeepSeek V4's indexer: who plans its work for a chunk.

THE INVARIANTS
- More than 11673 queries are planned by SGLang's own kernel, whatever was asked for: DeepGEMM's
  runs out of shared memory on them. Up to there the one that was asked for plans.
- The plan is for every query of the chunk.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import sparse_prefill as adapter
from harness import checking
from harness.guards import not_here


@pytest.fixture(autouse=True)
def deepseek_v4() -> None:
    if not adapter.HAS_V4:
        not_here("this release has no DeepSeek V4")


@pytest.mark.guards("25418-large-query")
@given(adapter.query_counts(), st.booleans())
def test_more_queries_than_deepgemm_holds_are_planned_by_sglang(
    queries: int, own_asked_for: bool
) -> None:
    with checking.checked() as check:
        planner, planned = adapter.indexer_metadata_from(check, queries, own_asked_for)
    assert planner == ("own" if own_asked_for or queries > adapter.LIMIT else "DeepGEMM")
    assert planned == queries
