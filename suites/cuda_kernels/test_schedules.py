"""FlashMLA's schedule of a batch over partitions of the card, as SGLang's CUDA kernel plans it.

THE INVARIANTS IN PLAIN WORDS
- Each request's blocks are covered once, in order, by the partitions that name it.
- A partition without work begins at block 0.
"""

from __future__ import annotations

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
