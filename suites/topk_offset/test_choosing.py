"""The kernels that choose the best tokens of a row, and the form in which these are written.

THE INVARIANTS
- Fused or not, by any kernel, for a batch whole or in parts, a transform writes the best tokens of
  each row: as indices into the request if nothing is fused, else as slots of the pool or as indices
  into the batch's keys, as the batch's setting requires.
- If all visible tokens of a query are taken, nothing is scored, and all of them are written.
- The kernels of the configured backend choose, and no others: SGLang's second kernel only if that
  is allowed, and only within its contract: up to 2048 tokens, rows of float32 that start at 16
  bytes. Other scores go to the older kernel; on ROCm packed rows go to it in parts as well.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures import topk_offset as adapter
from fixtures.topk_offset import TopkBatch, TopkServer
from harness import checking
from harness.core import device
from harness.guards import skip_not_applicable

CHECK = "20606-offset-check"
PARTS = 2  # query tokens per part


def every_choice(test: Callable[..., None]) -> Callable[..., None]:
    for server, batch in adapter.list_topk_cases():
        at_once = PARTS if batch.requests[0].cached else len(batch.rows)
        test = example(server, batch, at_once)(test)
    return test


@pytest.mark.guards("20606", without=(CHECK,))
@every_choice
@given(
    adapter.right_servers(prefill="flashmla_sparse", decode="flashmla_kv"),
    adapter.mixed_batches(),
    st.integers(1, 30),
)
def test_the_transform_numbers_the_best_tokens_of_the_row(
    server: TopkServer, batch: TopkBatch, at_once: int
) -> None:
    with (
        checking.checked() as check,
        adapter.set_up_backend(server, check.device) as (world, kernels),
    ):
        _, metadata = world.prepare_batch(batch)
        scores = adapter.make_scores(batch, check.device)
        best = adapter.list_best_places(batch, scores, server.topk)
        method = metadata.topk_transform_method
        chosen = adapter.run_transform(server, batch, metadata, scores, at_once)
        assert adapter.list_written_rows(chosen) == adapter.number_places(
            world, batch, best, method
        )
        assert chosen.shape == (len(batch.rows), server.topk)
        assert kernels.choosers <= adapter.list_allowed_choosers(server)


def every_short_choice(test: Callable[..., None]) -> Callable[..., None]:
    for server, batch in adapter.list_topk_cases():
        if batch.mode in ("DECODE", "EXTEND"):
            test = example(server, batch)(test)
    return test


@pytest.mark.guards("20606", without=(CHECK,))
@every_short_choice
@given(
    adapter.right_servers(prefill="flashmla_sparse", decode="flashmla_kv"),
    adapter.short_batches("DECODE", "EXTEND"),
)
def test_what_is_short_is_taken_whole_without_scores(server: TopkServer, batch: TopkBatch) -> None:
    server = adapter.raise_topk(server, batch.longest_request)
    with (
        checking.checked() as check,
        adapter.set_up_backend(server, check.device) as (world, kernels),
    ):
        _, metadata = world.prepare_batch(batch)
        method = metadata.topk_transform_method
        chosen = adapter.run_transform_without_scores(server, batch, metadata, check.device)
        everything = adapter.list_all_places(batch)
        assert adapter.list_written_rows(chosen) == adapter.number_places(
            world, batch, everything, method
        )
        assert kernels.choosers <= adapter.list_allowed_choosers(server)


@pytest.fixture
def _packed_rows_are_taken_here() -> None:
    if not adapter.HAS_ROCM_KERNEL:
        skip_not_applicable("no kernel for packed rows")
    if device.get_device() != "cpu":
        skip_not_applicable("the kernel for packed rows runs on ROCm alone")


@pytest.mark.usefixtures("_packed_rows_are_taken_here")
@pytest.mark.parametrize("scored", ["float32", "bfloat16", "rows in the middle of 16 bytes"])
@given(batch=adapter.batches("EXTEND"), topk=st.integers(1, 5), at_once=st.integers(1, 30))
def test_packed_rows_that_are_not_taken_go_to_another_kernel(
    scored: str, batch: TopkBatch, topk: int, at_once: int
) -> None:
    server = TopkServer(
        False, "flashmla_sparse", "flashmla_kv", second_kernel=True, rocm=True, page=4, topk=topk
    )
    with (
        checking.checked() as check,
        adapter.set_up_backend(server, check.device) as (world, kernels),
    ):
        _, metadata = world.prepare_batch(batch)
        scores = adapter.make_scores(batch, check.device)
        taken = scored == "float32"
        if scored == "bfloat16":
            scores = scores.argsort(dim=-1).remainder(256).to(torch.bfloat16)
            scores = torch.nn.functional.pad(scores, (0, -scores.shape[1] % 4))
        elif not taken:
            scores = torch.nn.functional.pad(scores, (0, 5 - scores.shape[1] % 4))
        best = adapter.list_best_places(batch, scores, topk)
        chosen = adapter.run_transform(server, batch, metadata, scores, at_once)
        wanted = adapter.number_places(world, batch, best, metadata.topk_transform_method)
        assert adapter.list_written_rows(chosen) == wanted
        assert kernels.choosers == {"second" if taken else "sgl-kernel"}
