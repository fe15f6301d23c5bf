"""FlashMLA's schedule of a batch over partitions of the card, as SGLang's CUDA kernel plans it.

THE INVARIANTS IN PLAIN WORDS
- Each request's blocks are covered once, in order, by the partitions that name it.
- A partition without work begins at block 0.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

BLOCK, TOPK = 64, 512


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=("attention.dsv4.flashmla_sched_meta",),
)


@pytest.mark.guards("flashmla-idle-partitions")
@given(lengths=st.lists(st.integers(1, TOPK), min_size=1, max_size=3), spare=st.integers(1, 4))
def test_idle_partitions_begin_at_block_zero(lengths: list[int], spare: int) -> None:
    plan = cuda_kernels.require_kernel("attention.dsv4.flashmla_sched_meta", "flashmla_sched_meta")
    with checking.checked_cuda() as check:
        device = check.device
        blocks = [-(-length // BLOCK) for length in lengths]
        schedule = torch.empty(sum(blocks) + spare, 8, dtype=torch.int32, device=device)
        splits = torch.empty(len(lengths) + 1, dtype=torch.int32, device=device)
        plan(
            schedule,
            splits,
            topk_length=torch.tensor(lengths, dtype=torch.int32, device=device),
            block_size_n=BLOCK,
            fixed_overhead_num_blocks=1,
            topk=TOPK,
        )
        check.assert_written(splits)
        rows = schedule[:, :4].tolist()
        assert [first for request, _, first, _ in rows if request == len(lengths)] == [0] * sum(
            row[0] == len(lengths) for row in rows
        )


@given(
    lengths=st.lists(st.integers(0, TOPK), min_size=1, max_size=4),
    copies=st.sampled_from([1, 3, 80]),
    parts=st.integers(1, 9),
    overhead=st.integers(0, 2),
    kind=st.sampled_from(["chosen", "all chosen", "dense", "two caches", "whole second cache"]),
)
def test_the_partitions_have_each_block_once(
    lengths: list[int], copies: int, parts: int, overhead: int, kind: str
) -> None:
    """A request's blocks follow one another over the partitions, each of which has its share."""
    plan = cuda_kernels.require_kernel("attention.dsv4.flashmla_sched_meta", "flashmla_sched_meta")
    lengths = lengths * copies
    requests = len(lengths)
    with checking.checked_cuda() as check:
        tokens = torch.tensor(lengths, dtype=torch.int32, device=check.device)
        schedule = torch.empty(parts, 8, dtype=torch.int32, device=check.device)
        splits = torch.empty(requests + 1, dtype=torch.int32, device=check.device)
        options, counts = _choose_cache(kind, lengths, tokens)
        plan(schedule, splits, block_size_n=BLOCK, fixed_overhead_num_blocks=overhead, **options)
        check.assert_written(schedule)
        check.assert_written(splits)
        rows, ends = schedule.tolist(), splits.tolist()
    blocks = [max(-(-count // BLOCK), 1) for count in counts]
    share = -(-(sum(blocks) + requests * overhead) // parts) + overhead
    intervals: list[list[tuple[int, int]]] = [[] for _ in range(requests)]
    active = [row for row in rows if row[0] < requests]
    for first, last, begin, end, split, *_ in active:
        assert split == len(intervals[first])
        work = 0
        for request in range(first, last + 1):
            start = begin if request == first else 0
            stop = end if request == last else blocks[request]
            intervals[request].append((start, stop))
            work += stop - start + overhead
        assert work <= share
    for request, found in enumerate(intervals):
        starts = [0, *(stop for _, stop in found)]
        # Of a dense request without a token there is one block, and nothing of it is read.
        is_empty = counts[request] == 0
        assert [start for start, _ in found] == starts[:-1]
        assert starts[-1] == (0 if is_empty else blocks[request])
        assert all(start < stop for start, stop in found) or is_empty
        assert ends[request + 1] - ends[request] == len(found)
    assert ends[0] == 0
    for first, last, *_, is_first_split, is_last_split, zero in active:
        assert is_first_split == (len(intervals[first]) > 1)
        assert is_last_split == (len(intervals[last]) > 1)
        assert zero == 0
    last_end = 0 if counts[-1] == 0 else blocks[-1]
    idle = [requests, requests - 1, 0, last_end, 0, 0, 0, 0]
    assert rows[len(active) :] == [idle] * (parts - len(active))


def _choose_cache(
    kind: str, lengths: list[int], tokens: torch.Tensor
) -> tuple[dict[str, Any], list[int]]:
    """Return the options of a kind of cache, and the tokens that each request reads of it."""
    chosen = [max(length, 1) for length in lengths]
    whole = [-(-length // BLOCK) * BLOCK for length in chosen]
    options: dict[str, tuple[dict[str, Any], list[int]]] = {
        "chosen": ({"topk": TOPK, "topk_length": tokens}, chosen),
        "all chosen": ({"topk": TOPK}, [TOPK] * len(lengths)),
        "dense": ({"topk": -1, "seqlens_k": tokens}, lengths),
        "two caches": (
            {
                "topk": TOPK,
                "topk_length": tokens,
                "extra_topk": 128,
                "extra_topk_length": tokens.flip(0),
            },
            [first + second for first, second in zip(whole, reversed(lengths), strict=True)],
        ),
        "whole second cache": (
            {"topk": TOPK, "topk_length": tokens, "extra_topk": 130},
            [first + 130 for first in whole],
        ),
    }
    return options[kind]
