"""What the zoo asks of transformers and of a release before it serves a model."""

from __future__ import annotations

import pytest

from fixtures.loaded_model import refuses_second_chunk
from fixtures.zoo.reference_model import TransformersModel, UnknownArchitecture


class PoolOfOneChunk:
    def alloc(self, requests: list[object]) -> None:
        assert len(requests) <= 1, "only one chunked request may reuse req_pool_idx in a batch"


class PoolOfManyChunks:
    def alloc(self, requests: list[object]) -> None:
        # assert len(requests) <= 1, "only one chunked request may reuse req_pool_idx"
        assert requests


class HybridPool(PoolOfOneChunk):
    def alloc(self, requests: list[object]) -> None:
        super().alloc(requests)


def test_an_assertion_about_chunks_counts_where_it_runs() -> None:
    assert refuses_second_chunk(PoolOfOneChunk)
    assert refuses_second_chunk(HybridPool)
    assert not refuses_second_chunk(PoolOfManyChunks)


def test_a_model_that_transformers_lacks_is_named() -> None:
    with pytest.raises(UnknownArchitecture, match="no model of type llama_of_tomorrow"):
        TransformersModel("llama_of_tomorrow", {})
