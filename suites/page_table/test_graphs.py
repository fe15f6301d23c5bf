"""The slots that a captured graph of FlashAttention reads: decode, verification, draft extension.

THE INVARIANTS IN PLAIN WORDS

1. Whatever an earlier batch left in a graph's tables, a replay reads for each request exactly its
   own tokens, in their order: a decode its prefix, a step of a one-branch draft also the tokens
   drafted so far, a verification also all verified tokens, a draft's extension its prefix.
2. Layers with a window read the same tokens at their slots in the window's own pool.
3. If the pool moved its pages, the tables hold their current locations.
4. The ends of queries and keys are the running sums of the rows, padding included. No request has
   more queries than the graph's maximum.
5. A mode's table counts exactly the tokens that it reads past the lengths: none if the lengths
   already count all tokens, or if branches read their drafts by another table.
6. A forward of a mode without captured graphs is refused.
7. Nothing is written past the rows of the batch: those belong to a larger graph.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput

from fixtures import attention_graphs as graphs
from fixtures import flash_attention as flash
from fixtures.attention_graphs import POOLS, CapturedGraph, GraphForward, PoolKind, padded_batches
from fixtures.draft_batches import DraftBatch
from harness import checking
from harness.guards import skip_not_applicable

HAS_RAGGED = importlib.util.find_spec("sglang.srt.speculative.ragged_verify") is not None
HAS_REACH = hasattr(flash.flashattention_backend.FlashAttentionBackend, "_spec_read_seq_len_delta")


def each_request_reads_its_own(batch: DraftBatch, forward: GraphForward, pool: PoolKind) -> None:
    with checking.checked() as check:
        graph = CapturedGraph(batch, forward, pool, check.device)
        canaries = flash.fill_stale(graph.metadata)
        graph.replay()
        graph.assert_reads(flash.list_request_slots(batch, forward.extra_read_tokens))
        flash.assert_counts_add_up(graph.metadata, [forward.queries] * len(batch.lengths))
        canaries.assert_untouched()
        if HAS_REACH:
            assert (
                graph.backend._spec_read_seq_len_delta(forward.mode, forward.spec_info)
                == forward.extra_read_tokens
            )


# The last: the graph of a draft's extension, on a rank without a draft to extend.
DECODES = {
    "a decode": graphs.make_decode(idle=False),
    "idle": graphs.make_decode(idle=True),
    "idle extension": graphs.make_idle_extension(),
}


@given(batch=padded_batches(), pool=POOLS, kind=st.sampled_from(sorted(DECODES)))
def test_a_decode_reads_the_tokens_of_each_request(
    batch: DraftBatch, pool: PoolKind, kind: str
) -> None:
    if DECODES[kind].spec_info is not None and not HAS_REACH:
        kind = "idle"
    each_request_reads_its_own(batch, DECODES[kind], pool)


@given(batch=padded_batches(), pool=POOLS, step=st.integers(0, 4), idle=st.booleans())
def test_a_draft_of_one_branch_reads_what_it_drafted(
    batch: DraftBatch, pool: PoolKind, step: int, idle: bool
) -> None:
    each_request_reads_its_own(batch, graphs.make_draft_step(batch, step % batch.steps, idle), pool)


@given(batch=flash.batches())
def test_a_mode_that_no_graph_serves_is_refused(batch: DraftBatch) -> None:
    if not flash.HAS_SINGLE_ENTRY:
        skip_not_applicable("what no graph serves is left alone")
    with checking.checked() as check:
        graph = CapturedGraph(
            batch, graphs.make_verification(batch), PoolKind(False, False), check.device
        )
        forward = flash.make_forward_batch(graph.backend, batch, ForwardMode.DLLM_EXTEND)
        with pytest.raises(ValueError, match="DLLM_EXTEND"):
            flash.replay_graph(graph.backend, forward)


WHOLE = (ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.DRAFT_EXTEND_V2)
IN_TWO_HALVES = (ForwardMode.DECODE, ForwardMode.IDLE, ForwardMode.TARGET_VERIFY)


@given(
    batch=flash.batches(),
    mode=st.sampled_from(WHOLE + IN_TWO_HALVES),
    topk=st.sampled_from([1, 2, 4]),
    step=st.integers(0, 4),
)
def test_lengths_that_count_all_tokens_are_read_no_further(
    batch: DraftBatch, mode: ForwardMode, topk: int, step: int
) -> None:
    if not HAS_REACH:
        skip_not_applicable("no mode says how far it reads")
    with checking.checked() as check:
        one = flash.make_backend(
            batch,
            check.device,
            topk=max(2, topk) if mode in IN_TWO_HALVES else topk,
            speculative_num_steps=batch.steps,
            speculative_step_id=step % batch.steps,
        )
        assert one._spec_read_seq_len_delta(mode, EagleDraftInput()) == 0


@given(batch=padded_batches(), pool=POOLS)
def test_a_verification_reads_all_that_it_verifies(batch: DraftBatch, pool: PoolKind) -> None:
    each_request_reads_its_own(batch, graphs.make_verification(batch), pool)


@given(batch=padded_batches(), pool=POOLS, data=st.data())
def test_a_ragged_verification_reads_what_each_request_verifies(
    batch: DraftBatch, pool: PoolKind, data: st.DataObject
) -> None:
    if not HAS_RAGGED:
        skip_not_applicable("every request verifies as many tokens")
    lengths, spare = data.draw(graphs.ragged_lengths(batch))
    with checking.checked() as check:
        layout = graphs.make_ragged_layout(lengths, spare, check.device)
        graph = CapturedGraph(batch, graphs.make_verification(batch, layout), pool, check.device)
        canaries = flash.fill_stale(graph.metadata, "cu_seqlens_q")
        graph.replay()
        rows = flash.list_request_slots(batch, batch.steps)
        verified = zip(rows, lengths, batch.lengths, strict=False)
        graph.assert_reads([row[: length + count] for row, count, length in verified])
        queries = graph.metadata.cu_seqlens_q.tolist()
        assert queries[: len(lengths) + 1] == flash.accumulate_counts(lengths)
        assert queries[-1] == sum(lengths) + spare
        flash.assert_counts_add_up(graph.metadata, torch.diff(graph.metadata.cu_seqlens_q).tolist())
        canaries.assert_untouched()


@given(
    batch=padded_batches(),
    pool=POOLS,
    known=st.booleans(),
    on_host=st.booleans(),
    on_device=st.booleans(),
    data=st.data(),
)
def test_an_extension_of_a_draft_reads_the_tokens_of_each_request(
    batch: DraftBatch,
    pool: PoolKind,
    known: bool,
    on_host: bool,
    on_device: bool,
    data: st.DataObject,
) -> None:
    queries = [data.draw(st.integers(1, batch.steps)) for _ in batch.lengths]
    with checking.checked() as check:
        forward = graphs.make_extension(
            batch,
            known,
            extend_seq_lens_cpu=queries if on_host else None,
            extend_seq_lens_tensor=(
                torch.tensor(queries, device=check.device) if on_device else None
            ),
        )
        if not (on_host or on_device):
            queries = [batch.steps] * len(queries)
        graph = CapturedGraph(batch, forward, pool, check.device)
        canaries = flash.fill_stale(graph.metadata, "cu_seqlens_q")
        graph.metadata.cu_seqlens_q[0] = 0  # the offset of the first row is never rewritten
        graph.replay()
        graph.assert_reads(flash.list_request_slots(batch))
        flash.assert_counts_add_up(graph.metadata, queries)
        assert graph.metadata.max_seq_len_q == (max(queries) if on_host else batch.steps)
        canaries.assert_untouched()
