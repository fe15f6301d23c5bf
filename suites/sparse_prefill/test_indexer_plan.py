"""DeepSeek V4's indexer: the planner of its work for a chunk, and the pieces.

THE INVARIANTS
- SGLang's own kernel plans more than 11673 queries, whatever the setting: DeepGEMM's runs out of
  shared memory on them. Up to there the configured one plans. If the rows of a request are planned
  as one, or only DeepGEMM supports the layout, it is DeepGEMM. If PyTorch scores, there is no plan.
- The plan covers every query of the chunk, with its own length.
- The scores of a piece fit into the free memory, except that a request's rows are never split; on
  SM120 a piece has 4096 rows at most. There are as few pieces as that allows, in order, and each
  row is in exactly one. A single piece is not stored as a list: a graph copies its plan in place.
- Below eight million scores, and in a forward with fixed shapes, nothing is split, and the free
  memory is not queried.
- The topk of the scores is planned over all rows, and over each of several pieces.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import sparse_prefill as adapter
from harness import checking
from harness.guards import skip_not_applicable


@pytest.fixture(autouse=True)
def deepseek_v4() -> None:
    if not adapter.HAS_V4:
        skip_not_applicable("this release has no DeepSeek V4")


@pytest.fixture
def pieces() -> None:
    if not adapter.HAS_PIECES:
        skip_not_applicable("this release plans every batch as one")


@pytest.mark.guards("25418-large-query")
@given(adapter.query_counts(), st.booleans())
def test_more_queries_than_deepgemm_holds_are_planned_by_sglang(
    queries: int, own_asked_for: bool
) -> None:
    batch = adapter.IndexerBatch(queries, prefers_own_kernel=own_asked_for)
    with checking.checked() as check:
        ((planner, lengths),) = adapter.make_plan(check, batch).planner_calls
    assert planner == (
        "own" if own_asked_for or queries > adapter.MAX_DECODE_QUERIES else "DeepGEMM"
    )
    assert lengths == [[length] for length in batch.lengths]


def every_piece_is_planned(batch: adapter.IndexerBatch) -> None:
    with checking.checked() as check:
        planned = adapter.make_plan(check, batch)
    cut = adapter.split_rows(batch)
    several, who = len(cut) > 1, adapter.choose_planner(batch)
    lengths = [batch.lengths[piece.start : piece.stop] for piece in cut]
    assert planned.pieces == cut
    if who == "nobody":
        assert (planned.planner_calls, planned.plans) == ([], [(cut[0], None)])
    else:
        groups = [[*zip(*[iter(piece)] * batch.rows_per_request, strict=True)] for piece in lengths]
        assert planned.planner_calls == [(who, [[*one] for one in piece]) for piece in groups]
        assert planned.plans == [(piece, call) for call, piece in enumerate(cut)]
        assert isinstance(planned.metadata.deep_gemm_metadata, list) == several
    choices = [batch.lengths, *(lengths if several else [])] if batch.topk else []
    assert planned.topk_plans == choices


@pytest.mark.usefixtures("pieces")
@given(adapter.batches())
def test_scores_fit_into_memory_piece_by_piece(batch: adapter.IndexerBatch) -> None:
    every_piece_is_planned(batch)


@pytest.mark.usefixtures("pieces")
@given(adapter.batches(sm120=True))
def test_on_sm120_a_piece_has_4096_rows_at_most(batch: adapter.IndexerBatch) -> None:
    every_piece_is_planned(batch)


@pytest.mark.usefixtures("pieces")
@given(st.sampled_from(adapter.FIXED_SHAPE_REASONS).flatmap(adapter.batches))
def test_memory_does_not_cut_what_a_graph_fixes(batch: adapter.IndexerBatch) -> None:
    every_piece_is_planned(batch)
