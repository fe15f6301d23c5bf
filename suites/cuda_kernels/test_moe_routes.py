"""Tokens and their experts in SGLang's CUDA kernels: alignment, permutation, hash routing.

THE INVARIANTS IN PLAIN WORDS
- Alignment writes each of its tensors, and nothing behind them, whatever the number of padded ids.
- A route of padding (expert -1) is no expert's row: the first expert's rows begin at 0.
- A token's weights are finite, whatever its scores, and add up to 1 where any of them counts.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

BLOCK = 4


@pytest.fixture(autouse=True)
def _built_modules() -> None:
    cuda_kernels.build_modules("moe.moe_align", "moe.moe_permute_prepare", "moe.dsv4")


chosen_experts = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@pytest.mark.guards("moe-align-fill-tail")
@given(chosen=chosen_experts, spare=st.integers(0, 3))
def test_alignment_pads_its_ids_and_no_more(chosen: list[int], spare: int) -> None:
    check_alignment(65, chosen, spare)


@pytest.mark.guards("moe-align-fill-tail-v2")
@given(chosen=chosen_experts, spare=st.integers(0, 3))
def test_alignment_of_many_experts_pads_no_more(chosen: list[int], spare: int) -> None:
    check_alignment(1025, chosen, spare)


def check_alignment(experts: int, chosen: list[int], spare: int) -> None:
    align = cuda_kernels.require_kernel("moe.moe_align", "moe_align_block_size")
    routes = len(chosen)
    with checking.checked_cuda() as check:
        topk = torch.tensor(chosen, dtype=torch.int32, device=check.device)
        capacity = routes * BLOCK + spare
        ids = torch.empty(capacity, dtype=torch.int32, device=check.device)
        blocks = torch.empty(routes, dtype=torch.int32, device=check.device)
        total = torch.empty(1, dtype=torch.int32, device=check.device)
        sums = torch.empty(experts + 1, dtype=torch.int32, device=check.device)
        align(topk, experts, BLOCK, ids, blocks, total, sums, True)
        wanted: list[int] = []
        for expert in sorted(set(chosen)):
            own = [place for place, one in enumerate(chosen) if one == expert]
            padding = -len(own) % BLOCK
            wanted += own + [routes] * padding
        assert int(total) == len(wanted)
        found = ids.tolist()
        assert [sorted(found[i : i + BLOCK]) for i in range(0, len(wanted), BLOCK)] == [
            sorted(wanted[i : i + BLOCK]) for i in range(0, len(wanted), BLOCK)
        ]
        assert found[len(wanted) :] == [routes] * (capacity - len(wanted))


@pytest.mark.guards("moe-permute-inactive-routes")
@given(
    chosen=st.lists(st.integers(-1, 3), min_size=1, max_size=12),
    is_ep=st.booleans(),
    wide=st.booleans(),
)
def test_padding_is_no_row_of_an_expert(chosen: list[int], is_ep: bool, wide: bool) -> None:
    permute = cuda_kernels.require_kernel("moe.moe_permute_prepare", "moe_permute_prepare")
    with checking.checked_cuda() as check:
        topk = torch.tensor(chosen, dtype=torch.int32, device=check.device)
        offsets, rows = permute(topk, 4, wide, is_ep)
        ordered = sorted(one for one in chosen if one >= 0)
        assert offsets.tolist() == [sum(one < e for one in ordered) for e in range(5)]
        placed = {row: chosen[route] for route, row in enumerate(rows.tolist()) if row >= 0}
        assert [placed[row] for row in range(len(ordered))] == ordered


@pytest.mark.guards("34459-hash-topk")
@given(
    # Down to -60 a score's weight is far above what keeps the sum from zero; -200 underflows.
    scores=st.lists(st.floats(-60, 120, width=32) | st.just(-200.0), min_size=4, max_size=4),
    tokens=st.integers(1, 3),
)
def test_hash_routed_weights_are_finite(scores: list[float], tokens: int) -> None:
    hash_topk = cuda_kernels.require_kernel("moe.dsv4", "hash_topk")
    with checking.checked_cuda() as check:
        logits = torch.tensor([scores] * tokens, dtype=torch.float32, device=check.device)
        table = torch.tensor([[0, 2], [3, 1]], dtype=torch.int32, device=check.device)
        token_ids = torch.arange(tokens, device=check.device) % 2
        weights, experts = hash_topk(logits, token_ids, table)
        chosen = table[token_ids]
        assert experts.equal(chosen)
        raw = torch.nn.functional.softplus(logits.double()).sqrt().gather(1, chosen.long())
        wanted = raw / raw.sum(1, keepdim=True).clamp(min=1e-20)
        torch.testing.assert_close(weights.double(), wanted, atol=1e-5, rtol=1e-4)
