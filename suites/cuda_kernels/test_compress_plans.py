"""Plans of DeepSeek-V4's compression: which tokens are compressed, and which states are kept.

THE INVARIANTS IN PLAIN WORDS
- A token that ends a group of tokens is compressed, once, with the state of its own request.
- The tail behind the last full group is written to the request's ring, each token to its place.
- A batch of 65,536 tokens has a plan: 65,535 is a token's number, not the number of tokens.
"""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

GROUP = 128  # tokens that are compressed into one
INVALID = 0xFFFFFFFF


pytestmark = pytest.mark.prepared(by=cuda_kernels.build_modules, names=("attention.dsv4.compress",))


@pytest.mark.guards("compress-plan-shared-race")
@given(
    extends=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    requests=st.integers(1, 70),
    prefix=st.integers(0, 300),
    spare=st.integers(0, 5),
)
def test_requests_on_the_card_are_planned_one_by_one(
    extends: list[int], requests: int, prefix: int, spare: int
) -> None:
    lengths = [extends[place % len(extends)] for place in range(requests)]
    prefixes = [prefix + 40 * place for place in range(requests)]
    check_plan(prefixes, lengths, spare, is_on_card=True)


@pytest.mark.guards("compress-plan-64k-tokens")
@given(tokens=st.sampled_from([1, 300, 65535, 65536]), prefix=st.integers(0, 300))
def test_the_largest_batch_has_a_plan(tokens: int, prefix: int) -> None:
    check_plan([prefix], [tokens], 0, is_on_card=False)


@given(
    prefixes=st.lists(st.integers(0, 600), min_size=1, max_size=5),
    data=st.data(),
)
def test_requests_on_the_host_are_planned_one_by_one(
    prefixes: list[int], data: st.DataObject
) -> None:
    lengths = [data.draw(st.integers(1, 300)) for _ in prefixes]
    check_plan(prefixes, lengths, 0, is_on_card=False)


@given(lengths=st.lists(st.integers(1, 900), min_size=1, max_size=6))
def test_a_decode_step_reads_the_ring_of_its_request(lengths: list[int]) -> None:
    plans = cuda_kernels.require_kernel("attention.dsv4.compress", "CompressorDecodePlan")
    with checking.checked_cuda() as check:
        device = check.device
        requests = len(lengths)
        rows = [requests - place for place in range(requests)]  # in the pool, another order
        plan = plans.generate(
            GROUP,
            torch.tensor(rows, device=device),
            torch.zeros(requests + 1, 1024, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.tensor(lengths, device=device),
            GROUP,
            GROUP,
        )
        found = plan.plan_d.view(torch.int32).tolist()
    for row, length, planned in zip(rows, lengths, found, strict=True):
        assert planned == [length, row * GROUP + (length - 1) % GROUP, row, row]


def check_plan(prefixes: list[int], lengths: list[int], spare: int, is_on_card: bool) -> None:
    """Plan a batch, `spare` rows of padding behind it, and compare it with its definition."""
    plans = cuda_kernels.require_kernel("attention.dsv4.compress", "CompressorPrefillPlan")
    generate = cuda_kernels.fail_on_refusal(plans.generate)
    requests, tokens = len(lengths), sum(lengths)
    totals = [prefix + length for prefix, length in zip(prefixes, lengths, strict=True)]
    rows = [requests - place for place in range(requests)]
    with checking.checked_cuda() as check:
        device = check.device
        place = device if is_on_card else "cpu"
        plan = generate(
            GROUP,
            torch.tensor(rows, device=device),
            torch.tensor(totals, device=place),
            torch.tensor(lengths, device=place),
            torch.zeros(requests + 1, 8, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
            GROUP,
            GROUP,
            tokens + spare,
        )
        compressed = list(struct.iter_unpack("=IHHii", bytes(plan.plan_c.flatten().tolist())))
        written = list(struct.iter_unpack("=Ii", bytes(plan.plan_w.flatten().tolist())))
    wanted_compressed, wanted_written, first = [], [], 0
    for row, prefix, length in zip(rows, prefixes, lengths, strict=True):
        last = (prefix + length) // GROUP * GROUP
        for number in range(length):
            position = prefix + number
            if (position + 1) % GROUP == 0:
                missing = GROUP - min(number + 1, GROUP)  # tokens that the state has to give
                wanted_compressed.append((position + 1, first + number, missing, row))
            if position >= last:
                wanted_written.append((first + number, row * GROUP + position % GROUP))
        first += length
    found = [one for one in compressed if one[0] != INVALID]
    assert sorted(one[:3] for one in found) == sorted(one[:3] for one in wanted_compressed)
    states = {one[1]: one[3] for one in wanted_compressed}
    assert all(one[3:] == (states[one[1]],) * 2 for one in found if one[2])
    assert sorted(one for one in written if one[0] != INVALID) == sorted(wanted_written)
