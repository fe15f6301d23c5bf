"""The arguments of FlashAttention's own planner in a decode, and the buffer of a graph's plan.

THE INVARIANTS IN PLAIN WORDS

1. A decode is planned with its own batch: the number of requests, the ends of queries, the tokens
   of each request and a bound on them. Each replay of a graph makes a new plan.
2. A graph's plan stays in the buffer of its capture, without the rest of a longer plan behind it.
3. No plan is made if it is useless: with latent attention, or if ranks plan together.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import attention_graphs as graphs
from fixtures import flash_attention as flash
from fixtures.attention_graphs import CapturedGraph, PoolKind, padded_batches
from fixtures.draft_batches import DraftBatch
from harness import checking
from harness.guards import skip_not_applicable

OWN_ROWS = PoolKind(has_window_pool=False, has_moved_pages=False)


def make_plan(
    *, batch_size: int, max_seqlen_k: int, cache_seqlens: Any, **options: Any
) -> torch.Tensor:
    """Stand in for FlashAttention 3's planner: the plan is the list of its arguments.

    As with the real one, a plan for short keys is longer than one for long keys.
    """
    numbers = [batch_size, *cache_seqlens.tolist(), *options["cu_seqlens_q"].tolist()]
    numbers += [max_seqlen_k] * (2 if max_seqlen_k == 1 else 1)
    return torch.tensor(numbers, dtype=torch.int32, device=cache_seqlens.device)


PLANNER = {
    "_get_scheduler_metadata": make_plan,
    "num_attention_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 1,
    "kv_cache_dtype": torch.bfloat16,
    "has_softcap": False,
    "num_splits": 0,
}


@pytest.fixture(autouse=True)
def planning() -> None:
    if not hasattr(
        flash.flashattention_backend.FlashAttentionBackend, "_compute_scheduler_metadata"
    ):
        skip_not_applicable("every layer plans for itself")


@given(batch=padded_batches(longest=64), known=st.booleans())
def test_a_graph_is_planned_anew(batch: DraftBatch, known: bool) -> None:
    with checking.checked() as check:
        forward = graphs.make_decode(idle=False, lengths_on_host=known)
        graph = CapturedGraph(batch, forward, OWN_ROWS, check.device, **PLANNER)
        captured = graph.metadata.scheduler_metadata
        longest = max(batch.lengths) if known else batch.context
        graph.replay()
        count = len(batch.lengths)
        expected = [count, *batch.lengths, *range(count + 1), longest]
        if longest == 1:
            expected.append(longest)
        assert captured.tolist() == expected + [0] * (captured.numel() - len(expected))


@given(
    batch=flash.batches(longest=64),
    latent=st.booleans(),
    together=st.booleans(),
)
def test_a_plan_is_made_where_it_is_of_use(batch: DraftBatch, latent: bool, together: bool) -> None:
    with checking.checked() as check:
        backend = flash.make_backend(
            batch,
            check.device,
            **PLANNER | {"use_mla": latent, "_disable_scheduler_metadata_precompute": together},
        )
        backend.init_forward_metadata(
            flash.make_forward_batch(backend, batch, graphs.make_decode(False).mode)
        )
        count = len(batch.lengths)
        plan = backend.forward_metadata.scheduler_metadata
        if latent or together:
            assert plan is None
        else:
            expected = [count, *batch.lengths, *range(count + 1), max(batch.lengths)]
            assert plan.tolist()[: len(expected)] == expected
