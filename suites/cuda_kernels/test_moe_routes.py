"""Tokens and their experts in SGLang's CUDA kernels: alignment, permutation, hash routing.

THE INVARIANTS IN PLAIN WORDS
- Alignment writes each of its tensors, and nothing behind them, whatever the number of padded ids.
- Blocks behind those of the last expert are marked as nobody's, where the caller asks for it.
- A route of padding (expert -1) is no expert's row: the first expert's rows begin at 0.
- A token's weights are finite, whatever its scores, and add up to 1 where any of them counts.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking
from harness.guards import skip_not_applicable
from harness.guards.cells import enable_where_missing

BLOCK = 4


def prepare_module(name: str) -> pytest.MarkDecorator:
    """Mark a guard with its own module, so that a proof builds no others of this file."""
    return pytest.mark.prepared(by=cuda_kernels.build_modules, names=(name,))


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "moe.cutlass_prepare_moe_input",
        "moe.dsv4",
        "moe.moe_align",
        "moe.moe_align_single_token",
        "moe.moe_permute_prepare",
        "moe.moe_topk_sigmoid",
        "moe.moe_topk_softmax",
    ),
)

chosen_experts = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@pytest.mark.guards("37663-align")
@prepare_module("moe.moe_align")
@given(chosen=chosen_experts)
def test_alignment_names_the_expert_of_each_block(chosen: list[int]) -> None:
    check_alignment(65, chosen, spare=0)  # whole vectors of ids: no tail to fill


@pytest.mark.guards("moe-align-fill-tail")
@prepare_module("moe.moe_align")
@given(chosen=chosen_experts, spare=st.integers(0, 3))
def test_alignment_pads_its_ids_and_no_more(chosen: list[int], spare: int) -> None:
    with enable_where_missing("37663-align"):  # its fault is met first otherwise
        check_alignment(65, chosen, spare)


@pytest.mark.guards("moe-align-fill-tail-v2")
@prepare_module("moe.moe_align")
@given(chosen=chosen_experts, spare=st.integers(0, 3))
def test_alignment_of_many_experts_pads_no_more(chosen: list[int], spare: int) -> None:
    check_alignment(1025, chosen, spare)


@given(chosen=chosen_experts, spare=st.integers(0, 3))
def test_alignment_of_few_experts_pads_no_more(chosen: list[int], spare: int) -> None:
    check_alignment(9, chosen, spare)


@given(chosen=chosen_experts, spare=st.integers(0, 3))
def test_alignment_of_many_routes_to_few_experts_pads_no_more(
    chosen: list[int], spare: int
) -> None:
    with enable_where_missing("37663-align", "moe-align-fill-tail"):
        check_alignment(9, (chosen * 1024)[:1024], spare)


@pytest.mark.parametrize("experts", [9, 65, 1025], ids=["few", "some", "many"])
@given(chosen=chosen_experts)
def test_blocks_behind_the_last_expert_are_marked_where_that_is_asked(
    experts: int, chosen: list[int]
) -> None:
    align = cuda_kernels.require_kernel("moe.moe_align", "moe_align_block_size")
    if "pad_expert_ids" not in inspect.signature(align).parameters:
        skip_not_applicable("this release's alignment marks no blocks")
    routes = len(chosen)
    with checking.checked_cuda() as check:
        topk = torch.tensor(chosen, dtype=torch.int32, device=check.device)
        ids, blocks, total, sums = (
            torch.empty(size, dtype=torch.int32, device=check.device)
            for size in (routes * BLOCK, routes + 2, 1, experts + 1)
        )
        align(topk, experts, BLOCK, ids, blocks, total, sums, True, pad_expert_ids=True)
        owners = [one for one in sorted(set(chosen)) for _ in range(-(-chosen.count(one) // BLOCK))]
        assert blocks.tolist() == owners + [-1] * (routes + 2 - len(owners))


@pytest.mark.parametrize("experts", [9, 65, 1025], ids=["few", "some", "many"])
@given(chosen=st.lists(st.integers(-3, 3) | st.sampled_from([1 << 20, -(1 << 31)]), min_size=1))
def test_alignment_takes_experts_that_do_not_exist_for_padding(
    experts: int, chosen: list[int]
) -> None:
    align = cuda_kernels.require_kernel("moe.moe_align", "moe_align_block_size")
    if "map_invalid_experts_to_sentinel" not in inspect.signature(align).parameters:
        skip_not_applicable("this release's alignment maps no experts")
    routes, valid = len(chosen), [one if 0 <= one < experts - 1 else -1 for one in chosen]
    owners = [one for one in sorted(set(valid)) for _ in range(-(-valid.count(one) // BLOCK))]
    with checking.checked_cuda() as check:
        topk = torch.tensor(chosen, dtype=torch.int32, device=check.device)
        ids, blocks, counts, sums = (
            torch.empty(size, dtype=torch.int32, device=check.device)
            for size in (routes * BLOCK, routes, 2, experts + 1)
        )
        options = {"write_inactive_prefix_count": True, "map_invalid_experts_to_sentinel": True}
        align(topk, experts, BLOCK, ids, blocks, counts, sums, True, **options)
        assert blocks.tolist()[: len(owners)] == owners
        assert counts.tolist() == [len(owners) * BLOCK, owners.count(-1)]
        found = ids.tolist()
    for place, owner in enumerate(owners):
        own = [one for one in found[place * BLOCK : (place + 1) * BLOCK] if one < routes]
        assert own
        assert {valid[one] for one in own} == {owner}
    assert sorted(one for one in found if one < routes) == list(range(routes))


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
        if experts > 64 or routes >= 1024:  # of fewer, the sums stay in shared memory
            check.assert_written(sums)
        wanted: list[int] = []
        for expert in sorted(set(chosen)):
            own = [place for place, one in enumerate(chosen) if one == expert]
            padding = -len(own) % BLOCK
            wanted += own + [routes] * padding
        assert int(total) == len(wanted)
        owners = [chosen[wanted[first]] for first in range(0, len(wanted), BLOCK)]
        assert blocks.tolist()[: len(owners)] == owners
        found = ids.tolist()
        assert [sorted(found[i : i + BLOCK]) for i in range(0, len(wanted), BLOCK)] == [
            sorted(wanted[i : i + BLOCK]) for i in range(0, len(wanted), BLOCK)
        ]
        assert found[len(wanted) :] == [routes] * (capacity - len(wanted))


@pytest.mark.guards("moe-permute-inactive-routes")
@prepare_module("moe.moe_permute_prepare")
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


# Down to -60 a score's weight is far above what keeps the sum from zero; -200 underflows.
router_scores = st.lists(st.floats(-60, 120, width=32) | st.just(-200.0), min_size=4, max_size=4)


@pytest.mark.guards("34459-hash-topk")
@prepare_module("moe.dsv4")
@given(
    scores=st.lists(router_scores, min_size=1, max_size=3),
    shared=st.integers(0, 2),
    factor=st.sampled_from([1.0, 2.5]),
)
def test_hash_routed_weights_are_finite(
    scores: list[list[float]], shared: int, factor: float
) -> None:
    hash_topk = cuda_kernels.require_kernel("moe.dsv4", "hash_topk")
    with checking.checked_cuda() as check:
        device, tokens = check.device, len(scores)
        logits = torch.tensor(scores, dtype=torch.float32, device=device)
        table = torch.tensor([[0, 2], [3, 1]], dtype=torch.int32, device=device)
        token_ids = torch.arange(tokens, device=device) % 2
        weights, experts = hash_topk(logits, token_ids, table, shared, factor)
        chosen = table[token_ids]
        others = torch.arange(4, 4 + shared, dtype=torch.int32, device=device)
        assert experts.equal(torch.cat([chosen, others.expand(tokens, -1)], 1))
        raw = torch.nn.functional.softplus(logits.double()).sqrt().gather(1, chosen.long())
        wanted = raw / raw.sum(1, keepdim=True).clamp(min=1e-20)
        wanted = torch.cat([wanted, wanted.new_full((tokens, shared), 1 / factor)], 1)
        torch.testing.assert_close(weights.double(), wanted, atol=1e-5, rtol=1e-4)


@given(experts=cuda_kernels.draw_rows(0, 9, 6), block=st.sampled_from([1, 4, 16]))
def test_a_single_token_has_a_block_for_each_expert(experts: list[int], block: int) -> None:
    align = cuda_kernels.require_kernel("moe.moe_align_single_token", "moe_align_single_token")
    count = len(experts)
    with checking.checked_cuda() as check:
        topk = torch.tensor([experts], dtype=torch.int32, device=check.device)
        ids, blocks, total = align(topk, block)
        check.assert_written(ids)
        order = sorted(range(count), key=experts.__getitem__)
        assert blocks.tolist() == [experts[place] for place in order]
        assert ids.tolist() == [one for place in order for one in [place, *[count] * (block - 1)]]
        assert total.tolist() == [count * block]


@given(
    experts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    data=st.data(),
)
def test_routes_of_padding_lose_their_experts(
    experts: list[tuple[int, int]], data: st.DataObject
) -> None:
    mask = cuda_kernels.require_kernel("moe.dsv4", "mask_topk_ids")
    count = data.draw(st.integers(0, len(experts)))
    with checking.checked_cuda() as check:
        ids = torch.tensor(experts, dtype=torch.int32, device=check.device)
        mask(ids, torch.tensor([count], dtype=torch.int32, device=check.device))
        assert ids.tolist() == [
            list(own) if place < count else [-1, -1] for place, own in enumerate(experts)
        ]


@pytest.mark.parametrize("distance", [0, 1 << 31], ids=["near", "far"])
def test_routes_of_padding_lose_their_experts_however_far_apart_they_lie(distance: int) -> None:
    mask = cuda_kernels.require_kernel("moe.dsv4", "mask_topk_ids")
    with checking.checked_cuda() as check:
        wide = checking.virtual_zeros((2, 2 + distance), torch.int32, check.device)
        mask(wide[:, :2], torch.tensor([1], dtype=torch.int32, device=check.device))
        assert wide[:, :2].tolist() == [[0, 0], [-1, -1]]


@pytest.mark.parametrize("experts", [8, 12, 512], ids=["in-registers", "any-number", "many"])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@given(tokens=st.integers(1, 3), renormalize=st.booleans(), seed=cuda_kernels.seeds)
def test_the_best_experts_have_their_weights(
    kind: str, experts: int, tokens: int, renormalize: bool, seed: int
) -> None:
    choose = cuda_kernels.require_kernel(f"moe.moe_topk_{kind}", f"topk_{kind}")
    topk = 3
    with checking.checked_cuda() as check:
        generator = torch.Generator().manual_seed(seed)
        order = torch.stack([torch.randperm(experts, generator=generator) for _ in range(tokens)])
        scores = (order / experts * 8 - 4).to(check.device)
        weights = torch.empty(tokens, topk, dtype=torch.float32, device=check.device)
        ids = torch.empty(tokens, topk, dtype=torch.int32, device=check.device)
        choose(weights, ids, scores, renormalize)
        check.assert_written(weights)
        exact = scores.double()
        exact = exact.softmax(-1) if kind == "softmax" else exact.sigmoid()
        best = exact.topk(topk)
        assert ids.tolist() == best.indices.tolist()
        wanted = best.values
        if renormalize:
            wanted = wanted / wanted.sum(-1, keepdim=True)
        torch.testing.assert_close(weights.double(), wanted, rtol=1e-3, atol=1e-5)


@given(chosen=st.lists(st.integers(-1, 4), min_size=1, max_size=6), has_scales=st.booleans())
def test_a_grouped_product_gets_its_shapes_and_rows(chosen: list[int], has_scales: bool) -> None:
    name = "cutlass_prepare_moe_input"
    prepare = cuda_kernels.require_kernel(f"moe.{name}", name)
    experts, inner, outer = 4, 16, 32
    with checking.checked_cuda() as check:
        device, routes = check.device, 2 * len(chosen)

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        topk = torch.tensor([[one, (one + 1) % 4] for one in chosen], dtype=torch.int32)
        offsets, scales = empty(experts + 1), empty(experts + 1) if has_scales else None
        shapes = [empty(experts, 3), empty(experts, 3)]
        inputs, outputs = empty(routes), empty(routes)
        prepare(
            topk.to(device),
            offsets,
            *shapes,
            inputs,
            outputs,
            experts,
            inner,
            outer,
            scales,
        )
        for written in (offsets, *shapes, inputs, outputs):
            check.assert_written(written)
        flat = topk.flatten().tolist()
        counts = [flat.count(expert) for expert in range(experts)]
        begins = [sum(counts[:expert]) for expert in range(experts + 1)]
        assert offsets.tolist() == begins
        assert shapes[0].tolist() == [[count, 2 * inner, outer] for count in counts]
        assert shapes[1].tolist() == [[count, outer, inner] for count in counts]
        places = outputs.tolist()
        for route, expert in enumerate(flat):
            if 0 <= expert < experts:
                assert begins[expert] <= places[route] < begins[expert + 1]
                assert inputs.tolist()[places[route]] == route // 2
            else:
                assert places[route] == -1
        used = [place for place in places if place >= 0]
        assert sorted(used) == list(range(begins[-1]))
        assert inputs.tolist()[begins[-1] :] == [0] * (routes - begins[-1])
        if scales is not None:
            assert scales.tolist() == [
                sum(-(-count // 128) * 128 for count in counts[:expert])
                for expert in range(experts + 1)
            ]
