"""Plans of DeepSeek-V4's compression: which tokens are compressed, and which states are kept.

THE INVARIANTS IN PLAIN WORDS
- A token that ends a group of tokens is compressed, once, with the state of its own request.
- The tail behind the last full group is written to the request's ring, each token to its place.
- Groups of 4 overlap: the group before the last is kept as well, and what a draft may roll back.
  Where states lie in pages of the pool, the last group of each page is kept, for other requests.
- A batch of 65,536 tokens has a plan: 65,535 is a token's number, not the number of tokens.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Ring:
    """Where states of groups of 4 lie: in a ring of the request's own, or of the pool's pages."""

    size: int
    page: int
    is_of_request: bool


rings = st.builds(Ring, st.sampled_from([8, 16]), st.sampled_from([16, 32]), st.booleans())
# Up to 32 tokens each, and as many of each request, are planned in another way.
extended = st.lists(st.integers(1, 60), min_size=1, max_size=4) | st.builds(
    lambda length, count: [length] * count, st.integers(1, 34), st.integers(1, 4)
)


@given(extends=extended, prefix=st.integers(0, 90), ring=rings, spare=st.integers(0, 5))
def test_overlapping_groups_on_the_card_are_planned_one_by_one(
    extends: list[int], prefix: int, ring: Ring, spare: int
) -> None:
    prefixes = [prefix + 7 * place for place in range(len(extends))]
    check_overlapping_plan(prefixes, extends, ring, spare, is_on_card=True)


@given(extends=extended, prefix=st.integers(0, 90), ring=rings)
def test_overlapping_groups_on_the_host_are_planned_one_by_one(
    extends: list[int], prefix: int, ring: Ring
) -> None:
    prefixes = [prefix + 7 * place for place in range(len(extends))]
    check_overlapping_plan(prefixes, extends, ring, 0, is_on_card=False)


@given(extends=st.lists(st.integers(1, 300), min_size=2, max_size=3), prefix=st.integers(0, 300))
def test_long_requests_on_the_card_are_planned_one_by_one(extends: list[int], prefix: int) -> None:
    check_plan([prefix] * len(extends), extends, 0, is_on_card=True)


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
    requests = len(lengths)
    rows = [requests - place for place in range(requests)]
    planned = plan_batch(
        GROUP, rows, prefixes, lengths, spare, is_on_card, torch.zeros(requests + 1, 8), [0]
    )

    def find_place(row: int, position: int) -> int:
        return row * GROUP + position % GROUP

    def keeps(total: int, position: int) -> bool:
        return position >= total // GROUP * GROUP

    compare_plan(planned, GROUP, GROUP, rows, prefixes, lengths, find_place, keeps)


def check_overlapping_plan(
    prefixes: list[int], lengths: list[int], ring: Ring, spare: int, is_on_card: bool
) -> None:
    """Plan a batch whose groups of 4 overlap, and compare it with its definition.

    How many tokens a verification may take back, and which end a page, is the release's own choice.
    It is restated here: a choice that is too small for what a later step reads would be no failure.
    """
    if not has_request_rings():
        ring = replace(ring, is_of_request=False)
    group, requests = 4, len(lengths)
    rows = [requests - place for place in range(requests)]
    longest = max(prefix + length for prefix, length in zip(prefixes, lengths, strict=True))
    # Each token has a slot of the pool, and each slot a place among those that a window keeps.
    slots = torch.randperm((requests + 1) * longest, generator=torch.Generator().manual_seed(0))
    places = slots.flip(0).tolist()
    table = slots.view(requests + 1, longest)
    planned = plan_batch(
        group, rows, prefixes, lengths, spare, is_on_card, table, places, ring=ring
    )
    rolled_back = ring.size - 2 * group + 2 if ring.size > 2 * group else 0

    def find_place(row: int, position: int) -> int:
        if ring.is_of_request:
            return row * ring.size + position % ring.size
        place = places[int(table[row, position])]
        return place // ring.page * ring.size + place % ring.size

    def keeps(total: int, position: int) -> bool:
        ends_page = position % ring.page >= ring.page - group and not ring.is_of_request
        is_open = position >= (total // group - 1) * group
        return is_open or ends_page or position >= total - rolled_back

    compare_plan(planned, group, 2 * group, rows, prefixes, lengths, find_place, keeps)


def has_request_rings() -> bool:
    """Return whether the release has rings of a request's own for groups of 4."""
    plans = cuda_kernels.require_kernel("attention.dsv4.compress", "CompressorPrefillPlan")
    return "use_req_ring" in inspect.signature(plans.generate).parameters


Plan = tuple[list[tuple[int, ...]], list[tuple[int, ...]]]


def plan_batch(
    group: int,
    rows: list[int],
    prefixes: list[int],
    lengths: list[int],
    spare: int,
    is_on_card: bool,
    table: torch.Tensor,
    places: list[int],
    ring: Ring | None = None,
) -> Plan:
    """Return the compressions and the writes that SGLang plans, those of padding left out."""
    plans = cuda_kernels.require_kernel("attention.dsv4.compress", "CompressorPrefillPlan")
    options = {}
    if ring and ring.is_of_request:
        options["use_req_ring"] = True
    generate = cuda_kernels.fail_on_refusal(plans.generate)
    totals = [prefix + length for prefix, length in zip(prefixes, lengths, strict=True)]
    tokens = sum(lengths) + spare
    with checking.checked_cuda() as check:
        device = check.device
        place = device if is_on_card else "cpu"
        plan = generate(
            group,
            torch.tensor(rows, device=device),
            torch.tensor(totals, device=place),
            torch.tensor(lengths, device=place),
            table.to(torch.int32).to(device),
            torch.tensor(places, device=device),
            *((ring.page, ring.size) if ring else (group, group)),
            tokens,
            **options,
        )
        if is_on_card:  # how many there are is known there alone
            assert len(plan.plan_c) == len(plan.plan_w) == tokens
        compressed = list(struct.iter_unpack("=IHHii", bytes(plan.plan_c.flatten().tolist())))
        written = list(struct.iter_unpack("=Ii", bytes(plan.plan_w.flatten().tolist())))
    return (
        [one for one in compressed if one[0] != INVALID],
        [one for one in written if one[0] != INVALID],
    )


def compare_plan(
    planned: Plan,
    group: int,
    window: int,
    rows: list[int],
    prefixes: list[int],
    lengths: list[int],
    find_place: Callable[[int, int], int],
    keeps: Callable[[int, int], bool],
) -> None:
    """Compare a plan with the compressions and the writes of its tokens, in any order.

    `find_place` is that of a request's state, and `keeps` says what is kept of a request of so
    many tokens.
    """
    compressed, written, first = [], [], 0
    for row, prefix, length in zip(rows, prefixes, lengths, strict=True):
        for number in range(length):
            position = prefix + number
            if (position + 1) % group == 0:
                missing = window - min(number + 1, window)  # tokens that the state has to give
                pages = [find_place(row, max(p, 0)) // group for p in (position - group, position)]
                compressed.append((position + 1, first + number, missing, *pages))
            if keeps(prefix + length, position):
                written.append((first + number, find_place(row, position)))
        first += length

    def leave_out_unread(one: tuple[int, ...]) -> tuple[int, ...]:
        return one if one[2] else one[:3]

    assert sorted(map(leave_out_unread, planned[0])) == sorted(map(leave_out_unread, compressed))
    assert sorted(planned[1]) == sorted(written)
