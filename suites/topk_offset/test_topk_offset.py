"""DeepSeek's sparse attention: the tokens that a query reads, in either numbering.

THE INVARIANTS
- A batch is RAGGED only if its metadata has an offset for each query token: the start of the
  token's own request in the batch's concatenated keys.
- A decode or idle batch is never RAGGED: its keys are not concatenated. Neither is a speculative
  one (a known bug of 0.5.9 and 0.5.10).
- A prefill of FP8 keys for `flashmla_sparse` is RAGGED: that kernel reads concatenated bf16 keys.
  bf16 keys are read in place, as PAGED; `flashmla_sparse_q8` concatenates any keys.
- Whatever the numbering, fused or not, whole or in parts, each query token attends to the best
  visible tokens of its own request, and to no others.
- The order of the requests, and their distribution over batches, changes nothing for a request.
- A RAGGED transform without offsets stops with a RuntimeError that names them, before any kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures import topk_offset as adapter
from fixtures.topk_offset import CachedRequest, TopkBatch, TopkServer, TransformMethod
from harness import checking
from harness.guards import skip_not_applicable

CHECK = "20606-offset-check"
COLD = TopkBatch("EXTEND", (CachedRequest(0, 2),))
SPECULATIVE = (
    pytest.mark.guards("20606", without=(CHECK,))
    if adapter.ASKS_FOR_EXTEND
    else pytest.mark.xfail(
        strict=True, reason="upstream: 20606 thought of decoding alone, until 0.5.11"
    )
)
FLASHINFER = pytest.mark.xfail(
    adapter.FLASHINFER_READS_WRONG_SCORES,
    strict=True,
    reason="upstream: paged prefill through FlashInfer ranks the first request's scores, to 0.5.16",
)
MIXED = pytest.mark.xfail(
    adapter.ASKS_FOR_EXTEND,
    strict=True,
    reason="upstream: from 0.5.11 on, mixed FP8 batches go to the bf16 kernel with the FP8 pool",
)


def read_metadata(server: TopkServer, batch: TopkBatch) -> tuple[Any, list[int] | None]:
    with checking.checked() as check, adapter.set_up_backend(server, check.device) as (world, _):
        _, metadata = world.prepare_batch(batch)
        offsets = metadata.attn_metadata.topk_indices_offset
        return metadata.topk_transform_method, None if offsets is None else offsets.tolist()


@pytest.mark.guards("20606", without=(CHECK,))
@given(adapter.servers(), adapter.mixed_batches())
@example(TopkServer(False, "flashmla_sparse", "flashmla_kv"), COLD)
def test_only_a_batch_with_offsets_is_told_ragged(server: TopkServer, batch: TopkBatch) -> None:
    method, offsets = read_metadata(server, batch)
    if method == TransformMethod.RAGGED:
        assert offsets == adapter.list_offsets(batch)
    if batch.mode in adapter.DECODE_MODES:
        assert method == TransformMethod.PAGED
    if batch.mode == "EXTEND" and server.fp8 and server.prefill == "flashmla_sparse":
        assert method == TransformMethod.RAGGED
    if not server.fp8 and server.prefill != "flashmla_sparse_q8":
        assert method == TransformMethod.PAGED


@SPECULATIVE
@given(
    adapter.servers(fp8=True, prefill="flashmla_sparse"),
    adapter.batches(*adapter.SPECULATIVE_MODES),
)
def test_a_speculative_batch_is_told_paged(server: TopkServer, batch: TopkBatch) -> None:
    method, _ = read_metadata(server, batch)
    assert method == TransformMethod.PAGED


def run_attention(
    server: TopkServer, batch: TopkBatch, at_once: int
) -> tuple[adapter.DsaBackendSetup, adapter.AttentionCall]:
    """Run the whole path from a batch to its attention kernel's inputs."""
    with checking.checked() as check, adapter.set_up_backend(server, check.device) as (world, _):
        forward_batch, metadata = world.prepare_batch(batch)
        scores = adapter.make_scores(batch, check.device)
        chosen = adapter.run_transform(server, batch, metadata, scores, at_once)
        return world, adapter.run_attention(world, batch, forward_batch, chosen)


@pytest.mark.guards("20606", without=(CHECK,))
@given(
    adapter.right_servers(),
    adapter.mixed_batches(),
    st.integers(1, 30),
)
def test_attention_reads_the_best_tokens_of_the_row(
    server: TopkServer, batch: TopkBatch, at_once: int
) -> None:
    world, attention = run_attention(server, batch, at_once)
    scores = adapter.make_scores(batch, "cpu")
    best = adapter.list_best_places(batch, scores, server.topk)
    assert attention.list_slots() == adapter.list_best_slots(world, batch, best)


@pytest.mark.guards("20606", without=(CHECK,))
@given(
    adapter.right_servers(),
    adapter.mixed_batches(),
    st.integers(1, 30),
    adapter.orders(4),
)
def test_a_request_reads_the_same_tokens_in_any_company(
    server: TopkServer, batch: TopkBatch, at_once: int, order: tuple[tuple[int, ...], int]
) -> None:
    """Check that shuffling and splitting the batch changes nothing for any request."""
    whole = tokens_read(server, batch, at_once)
    apart: dict[int, list[list[int]]] = {}
    for part in adapter.split_batch(batch, order):
        apart |= tokens_read(server, part, at_once)
    assert whole == apart


def tokens_read(server: TopkServer, batch: TopkBatch, at_once: int) -> dict[int, list[list[int]]]:
    """Return the reads of each request's query tokens, as positions in that request."""
    world, attention = run_attention(server, batch, at_once)
    places = [{slot: place for place, slot in enumerate(slots)} for slots in world.slots]
    owners = [request for request, _ in batch.rows]
    own = [
        [places[owner].get(slot, -slot) for slot in row]  # negative: not of the request
        for owner, row in zip(owners, attention.list_slots(), strict=True)
    ]
    return adapter.group_by_request(batch, own)


@pytest.mark.parametrize("chooser", ["sgl-kernel", "flashinfer"])
@pytest.mark.guards(CHECK)
@given(adapter.batches(*adapter.DECODE_MODES), st.integers(1, 5))
def test_ragged_without_offsets_stops_before_any_kernel(
    chooser: str, batch: TopkBatch, topk: int
) -> None:
    if chooser not in adapter.FUSED_CHOOSERS:
        skip_not_applicable(f"this release cannot choose its best tokens by {chooser}")
    server = TopkServer(True, "flashmla_sparse", "flashmla_kv", chooser=chooser, topk=topk)
    with (
        checking.checked() as check,
        adapter.set_up_backend(server, check.device) as (world, kernels),
    ):
        _, metadata = world.prepare_batch(batch)
        ragged = replace(metadata, topk_transform_method=TransformMethod.RAGGED)
        scores = adapter.make_scores(batch, check.device)
        with pytest.raises(Exception, match="requires topk_indices_offset") as stop:
            ragged.topk_transform(scores, server.topk)
        assert stop.type is RuntimeError
        assert not kernels.calls


@FLASHINFER
@given(
    adapter.servers(chooser="flashinfer", fp8=False, prefill="flashmla_kv", fused=True),
    adapter.batches("EXTEND"),
)
def test_flashinfer_reads_the_scores_of_the_row(server: TopkServer, batch: TopkBatch) -> None:
    if "flashinfer" not in adapter.FUSED_CHOOSERS:
        skip_not_applicable("this release cannot choose its best tokens by FlashInfer")
    if adapter.REAL_KERNELS:
        skip_not_applicable("FlashInfer compiles its kernels when they are first called: minutes")
    world, attention = run_attention(server, batch, len(batch.rows))
    best = adapter.list_best_places(batch, adapter.make_scores(batch, "cpu"), server.topk)
    assert attention.list_slots() == adapter.list_best_slots(world, batch, best)


@MIXED
@given(
    adapter.right_servers(fp8=True, prefill="flashmla_sparse"),
    adapter.batches("EXTEND", "MIXED"),
)
def test_the_bf16_prefill_kernel_is_not_handed_the_fp8_pool(
    server: TopkServer, batch: TopkBatch
) -> None:
    _, attention = run_attention(server, batch, len(batch.rows))
    assert attention.kernel == "flashmla_sparse"
    assert not attention.keys.fp8
