"""The best tokens of sparse attention in SGLang's CUDA kernels, as places in the pool.

THE INVARIANTS IN PLAIN WORDS
- Of a row's first tokens, as many as its length says, the best are selected, each once; of equal
  scores any. Where there are fewer than asked for, all are, and the rest is -1.
- A selected token is translated by its own request's page table.
- A plan lists the requests that are longer than its threshold, each once, with their lengths.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "attention.dsv4.candidate_blocks",
        "attention.dsv4.topk",
        "attention.fast_topk",
        "attention.minimax_decode_topk",
    ),
)

levels = st.sampled_from([3, 40, 1 << 20])  # how many different scores there are


def row_lengths(longest: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, longest), min_size=1, max_size=3)


@given(lengths=row_lengths(1100), starts=st.integers(0, 20), levels=levels, seed=cuda_kernels.seeds)
def test_the_best_of_each_row_are_selected(
    lengths: list[int], starts: int, levels: int, seed: int
) -> None:
    select = cuda_kernels.require_kernel("attention.fast_topk", "fast_topk")
    with checking.checked_cuda() as check:
        device = check.device
        scores = make_scores(seed, len(lengths), 1120, levels, device)
        first = torch.full((len(lengths),), starts, dtype=torch.int32, device=device)
        found = select(scores, int_tensor(lengths, device), 512, first)
        for row, length in enumerate(lengths):
            own = scores[row, starts : starts + length]
            expect_best(own, found[row].tolist(), 512)


@given(
    lengths=row_lengths(600),
    page=st.sampled_from([1, 64]),
    topk=st.sampled_from([64, 512]),
    levels=levels,
    has_raw=st.booleans(),
    seed=cuda_kernels.seeds,
)
def test_the_best_are_translated_by_their_page_table(
    lengths: list[int], page: int, topk: int, levels: int, has_raw: bool, seed: int
) -> None:
    select = cuda_kernels.require_kernel("attention.dsv4.topk", "topk_transform_paged")
    with checking.checked_cuda() as check:
        device, requests = check.device, len(lengths)
        scores = make_scores(seed, requests, 608, levels, device)
        table = make_table(seed, requests, -(-608 // page), device)
        places = torch.empty(requests, topk, dtype=torch.int32, device=device)
        raw = torch.empty_like(places) if has_raw else None
        select(scores, int_tensor(lengths, device), table, places, page, raw)
        for row, length in enumerate(lengths):
            chosen = translate_back(places[row].tolist(), table[row].tolist(), page)
            expect_best(scores[row, :length], chosen, topk)
            if raw is not None:
                assert raw[row].tolist() == chosen


@given(
    lengths=row_lengths(600),
    topk=st.sampled_from([64, 512]),
    levels=levels,
    seed=cuda_kernels.seeds,
)
def test_the_best_halves_are_translated_by_their_page_table(
    lengths: list[int], topk: int, levels: int, seed: int
) -> None:
    select = cuda_kernels.require_kernel("attention.dsv4.topk", "topk_transform_bf16_small")
    page = 8
    with checking.checked_cuda() as check:
        device, requests = check.device, len(lengths)
        scores = make_scores(seed, requests, 608, levels, device).to(torch.bfloat16)
        table = make_table(seed, requests, 608 // page, device)
        places = torch.empty(requests, topk, dtype=torch.int32, device=device)
        select(scores, int_tensor(lengths, device), table, places, page)
        for row, length in enumerate(lengths):
            chosen = translate_back(places[row].tolist(), table[row].tolist(), page)
            expect_best(scores[row, :length].float(), chosen, topk)


@given(
    lengths=row_lengths(600),
    page=st.sampled_from([1, 64]),
    topk=st.sampled_from([64, 512]),
    levels=levels,
    seed=cuda_kernels.seeds,
)
def test_a_planned_selection_is_the_best(
    lengths: list[int], page: int, topk: int, levels: int, seed: int
) -> None:
    plan = cuda_kernels.require_kernel("attention.dsv4.topk", "plan_topk_v2")
    select = cuda_kernels.require_kernel("attention.dsv4.topk", "topk_transform_paged_v2")
    ragged = cuda_kernels.require_kernel("attention.dsv4.topk", "topk_transform_ragged_v2")
    with checking.checked_cuda() as check:
        device, requests = check.device, len(lengths)
        scores = make_scores(seed, requests, 608, levels, device)
        table = make_table(seed, requests, -(-608 // page), device)
        limits = int_tensor(lengths, device)
        places = torch.empty(requests, topk, dtype=torch.int32, device=device)
        select(scores, limits, table, places, page, plan(limits))
        offsets = torch.arange(requests, dtype=torch.int32, device=device) * 1000
        flat = torch.empty_like(places)
        ragged(scores, limits, out_offsets=offsets, out_indices=flat)
        for row, length in enumerate(lengths):
            chosen = translate_back(places[row].tolist(), table[row].tolist(), page)
            expect_best(scores[row, :length], chosen, topk)
            own = [one - 1000 * row if one >= 0 else one for one in flat[row].tolist()]
            expect_best(scores[row, :length], own, topk)


@given(
    requests=st.sampled_from([40, 133, 512]),
    longest=st.sampled_from([1000, 70_000, 500_000]),
    threshold=st.sampled_from([None, 0, 100_000]),  # None: the release's own choice
    seed=cuda_kernels.seeds,
)
def test_a_plan_lists_the_requests_that_are_longer_than_its_threshold(
    requests: int, longest: int, threshold: int | None, seed: int
) -> None:
    plan = cuda_kernels.require_kernel("attention.dsv4.topk", "plan_topk_v2")
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest, (requests,), generator=generator)
    with checking.checked_cuda() as check:
        options = {} if threshold is None else {"static_threshold": threshold}
        planned = plan(lengths.to(torch.int32).to(check.device), **options).tolist()
    (used, count), items = planned[0], planned[1:]
    assert used >= 32768
    release_choice = inspect.signature(plan).parameters["static_threshold"].default
    if threshold is not None and threshold > release_choice:
        assert used == max(threshold, 32768)
    wanted = [[one, length] for one, length in enumerate(lengths.tolist()) if length > used]
    assert sorted(items[:count]) == wanted


@given(
    lengths=row_lengths(900),
    heads=st.integers(1, 2),
    topk=st.sampled_from([1, 4]),
    seed=cuda_kernels.seeds,
)
def test_the_best_blocks_of_a_head_become_its_page_table(
    lengths: list[int], heads: int, topk: int, seed: int
) -> None:
    select = cuda_kernels.require_kernel("attention.minimax_decode_topk", "minimax_decode_topk")
    block, blocks = 128, 8
    with checking.checked_cuda() as check:
        device, requests = check.device, len(lengths)
        scores = make_scores(seed, heads * requests, blocks, 1 << 20, device)
        scores = scores.view(heads, requests, blocks)
        found = select(scores, int_tensor(lengths, device), block, topk).tolist()
        for head in range(heads):
            for row, length in enumerate(lengths):
                own = scores[head, row, : -(-length // block)]
                chosen = found[head][row]
                expect_best(
                    own, sorted(one for one in chosen if one >= 0) + [-1] * chosen.count(-1), topk
                )


@given(lengths=row_lengths(200), seed=cuda_kernels.seeds)
def test_a_block_scores_what_its_best_token_does(lengths: list[int], seed: int) -> None:
    score = cuda_kernels.require_kernel("attention.dsv4.candidate_blocks", "amax8_varlen")
    with checking.checked_cuda() as check:
        device = check.device
        scores = make_scores(seed, len(lengths), 208, 1 << 20, device)
        found = score(scores, int_tensor(lengths, device))
        for row, length in enumerate(lengths):
            full = length // 8
            wanted = scores[row, : full * 8].view(full, 8).amax(-1)
            count = -(-length // 8)
            own = found[row, :count]
            assert own[: count - 1].equal(wanted[: count - 1])
            assert own[-1].isposinf()  # the newest block is always selected


def make_scores(seed: int, rows: int, width: int, levels: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-levels, levels, (rows, width), generator=generator)
    return drawn.to(torch.float32).to(device) / 8


def make_table(seed: int, rows: int, pages: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(4 * pages, generator=generator)[:pages] for _ in range(rows)]
    return torch.stack(drawn).to(torch.int32).to(device)


def translate_back(places: list[int], table: list[int], page: int) -> list[int]:
    """Return which token each place holds; a place that the table does not have fails."""
    tokens = {entry: number for number, entry in enumerate(table)}
    return [one if one < 0 else tokens[one // page] * page + one % page for one in places]


def expect_best(scores: torch.Tensor, chosen: Sequence[int], topk: int) -> None:
    length = len(scores)
    selected = [one for one in chosen if one != -1]
    assert len(selected) == min(length, topk)
    assert len(set(selected)) == len(selected)
    assert all(0 <= one < length for one in selected)
    assert list(chosen)[len(selected) :] == [-1] * (topk - len(selected))
    best = scores.topk(len(selected)).values
    assert scores[selected].sort(descending=True).values.equal(best)


def int_tensor(values: Sequence[int] | Sequence[Sequence[int]], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
