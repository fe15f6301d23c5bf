"""A model that is spread over ranks, which must give the logits of transformers.

THE INVARIANTS IN PLAIN WORDS

1. Each rank has its own share of a matrix, and all shares together are the matrix.
2. What ranks gather stands in the order of the ranks, and each sum has every rank's part.
3. All ranks come to the same collectives, also those that have no request.
"""

from __future__ import annotations

import pytest

from fixtures.zoo import compared_ranks as adapter
from harness.runs.zoo.rank_layout import RankLayout

pytestmark = pytest.mark.runs_on("virtual")
DP_ATTENTION = RankLayout(tp=2, dp=2, enable_dp_attention=True)


@pytest.mark.guards("gather-in-the-wrong-order", "rank-share-off-by-one", "rank-leaves-out-a-sum")
def test_tensors_over_two_ranks() -> None:
    adapter.assert_equals_transformers("llama", RankLayout(tp=2))


@pytest.mark.guards("falcon-h1-mamba-summed-twice")
def test_mamba_beside_attention_over_two_ranks() -> None:
    adapter.assert_equals_transformers("falcon_h1", RankLayout(tp=2))


@pytest.mark.guards("expert-share-off-by-one")
def test_experts_over_two_ranks() -> None:
    adapter.assert_equals_transformers("mixtral", RankLayout(tp=2, ep=2))


@pytest.mark.guards("15890")
def test_tied_embeddings_over_two_stages() -> None:
    adapter.assert_equals_transformers("qwen3", RankLayout(pp=2), tie_word_embeddings=True)


@pytest.mark.guards("attention-share-off-by-one")
def test_attention_for_requests_of_each_rank() -> None:
    adapter.assert_equals_transformers("qwen3", DP_ATTENTION)


@pytest.mark.guards("39899")
def test_an_idle_rank_that_is_padded_as_a_request_has_no_last_token() -> None:
    before, behind = adapter.read_mode_for_logits()
    assert behind == before
