"""The KV canary's kernels: a fingerprint of each slot's bytes, written and compared.

THE INVARIANTS IN PLAIN WORDS
- The fingerprint of a slot covers the slot's own bytes, in a layer's view of a larger pool too.
- Nothing is reported about slots that nobody changed; a changed byte is reported, with its slot.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking
from harness.guards import skip_not_applicable

SLOTS, BYTES, ANCHOR, MASK = 8, 32, 0xC0FFEE1234567890, (1 << 64) - 1
MISMATCHED_BYTES = 1 << 2  # the bit of a report that is about a slot's bytes


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules, names=("kv_canary.verify", "kv_canary.write")
)

layers = st.integers(1, 3)
slots = st.lists(st.integers(1, SLOTS - 1), min_size=1, max_size=4, unique=True)


@pytest.mark.guards("canary-write-row-stride")
@given(layers=layers, slots=slots, seed=st.integers(0, 99), sources=st.integers(1, 4))
def test_a_fingerprint_covers_the_slots_own_bytes(
    layers: int, slots: list[int], seed: int, sources: int
) -> None:
    cuda_kernels.require_kernel("kv_canary.write", "launch_canary_write_kernel")
    with checking.checked_cuda() as check:
        device = check.device
        pools = [fill_pool(layers, seed + number, device) for number in range(sources)]
        context = make_context(pools, device)
        write_fingerprints(context, slots, device)
        records = context.canary_buf.view(torch.int64).tolist()
    for place, (slot, wanted) in enumerate(zip(slots, make_records(pools, slots), strict=True)):
        assert records[slot] == wanted, place


@pytest.mark.parametrize("distance", [0, 1 << 31], ids=["near", "far"])
def test_a_fingerprint_is_written_however_far_apart_they_lie(distance: int) -> None:
    cuda_kernels.require_kernel("kv_canary.write", "launch_canary_write_kernel")
    with checking.checked_cuda() as check:
        device, slots = check.device, [1, 0]
        pool = fill_pool(1, 1, device)
        records = checking.virtual_zeros((2, 32 + distance), torch.uint8, device)
        context = make_context([pool], device, records)
        write_fingerprints(context, slots, device)
        found = records[:, :32].clone().view(torch.int64).tolist()
    assert [found[slot] for slot in slots] == make_records([pool], slots)


def write_fingerprints(context: Any, slots: list[int], device: str) -> None:
    """Write the records of one request whose tokens lie in these slots."""
    write = cuda_kernels.require_kernel("kv_canary.write", "launch_canary_write_kernel")
    plan_type = cuda_kernels.require_kernel("kv_canary.write", "WritePlan")
    count = len(slots)
    plan = plan_type(
        write_offsets=torch.tensor([0, count], device=device),
        write_seed_slot_indices=torch.tensor([-1], device=device),
        write_num_valid_reqs=torch.tensor([1], dtype=torch.int32, device=device),
    )
    call_canary(
        write,
        context=context,
        plan=plan,
        input_ids=torch.arange(count, device=device) + 5,
        positions=torch.arange(count, device=device),
        out_cache_loc=torch.tensor(slots, device=device),
        enable_write_input_assert=False,
        expected_input_tokens=None,
        expected_input_positions=None,
    )


@pytest.mark.guards("canary-verify-row-stride")
@given(
    layers=layers, slots=slots, seed=st.integers(0, 99), is_changed=st.booleans(), data=st.data()
)
def test_a_changed_byte_alone_is_reported(
    layers: int, slots: list[int], seed: int, is_changed: bool, data: st.DataObject
) -> None:
    verify = cuda_kernels.require_kernel("kv_canary.verify", "launch_canary_verify_kernel")
    plan_type = cuda_kernels.require_kernel("kv_canary.verify", "VerifyPlan")
    changed = data.draw(st.sampled_from(slots)) if is_changed else 0
    with checking.checked_cuda() as check:
        device = check.device
        pool = fill_pool(layers, seed, device)
        context = make_context([pool], device)
        records = context.canary_buf.view(torch.int64)
        for slot, record in zip(slots, make_records([pool], slots), strict=True):
            records[slot] = torch.tensor(record)
        if changed:
            pool[changed, data.draw(st.integers(0, BYTES - 1))] ^= 1
        plan = plan_type(
            verify_slot_indices=torch.tensor(slots, device=device),
            verify_expected_tokens=torch.full((len(slots),), -1, device=device),
            verify_expected_positions=torch.arange(len(slots), device=device),
            verify_prev_slot_indices=torch.tensor([-1, *slots[:-1]], device=device),
            verify_num_valid=torch.tensor([len(slots)], dtype=torch.int32, device=device),
            enable=torch.ones(1, dtype=torch.int32, device=device),
        )
        call_canary(verify, context=context, plan=plan, check_verify_expected_token=False)
        reported = context.violation_ring[: int(context.violation_write_index)]
        found = [(row[1], row[7]) for row in reported.tolist()]
        assert int(context.slot_run_counter) == len(slots)
    assert found == ([(changed, MISMATCHED_BYTES)] if changed else [])


def call_canary(launch: Any, **arguments: Any) -> None:
    """Launch a canary's kernel, or skip the guard where it refuses a view of a larger pool."""
    try:
        launch(**arguments)
    except ValueError as error:
        if "must be contiguous" not in str(error):
            raise
        skip_not_applicable("this release's canary takes contiguous buffers alone")


def fill_pool(layers: int, seed: int, device: str) -> torch.Tensor:
    """Return one layer of a pool of bytes, layer after layer in a slot."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 256, (SLOTS, layers, BYTES), generator=generator)
    return drawn.to(torch.uint8).to(device)[:, layers // 2]


def make_context(
    pools: list[torch.Tensor], device: str, records: torch.Tensor | None = None
) -> Any:
    if records is None:
        records = torch.zeros(SLOTS, 32, dtype=torch.uint8, device=device)
    context_type = cuda_kernels.require_kernel("kv_canary.verify", "VerifyOrWriteContext")
    source_type = cuda_kernels.require_kernel("kv_canary.verify", "RealKvSource")
    sources = tuple(
        source_type(tensor=pool, page_size=1, num_bytes_per_token=BYTES, read_bytes=BYTES)
        for pool in pools
    )
    tags = cuda_kernels.require_kernel("kv_canary.verify", "CanaryLaunchTag")
    modes = cuda_kernels.require_kernel("kv_canary.consts", "RealKvHashMode")
    return context_type(
        canary_buf=records,
        kernel_kind=tags(0),
        violation_ring=torch.zeros(4, 8, dtype=torch.int64, device=device),
        violation_write_index=torch.zeros(1, dtype=torch.int32, device=device),
        slot_run_counter=torch.zeros(1, dtype=torch.int64, device=device),
        kernel_run_counter=torch.zeros(1, dtype=torch.int64, device=device),
        real_kv_sources=sources,
        real_kv_hash_mode=modes.ALL,
        enable_chain_position_assert=torch.ones(1, dtype=torch.int32, device=device),
    )


def make_records(pools: list[torch.Tensor], slots: list[int]) -> list[list[int]]:
    """Return each slot's record: its token, its position, the chain before it, its bytes."""
    records, chain = [], mix_bits(ANCHOR)
    for position, slot in enumerate(slots):
        content = 0
        for pool in pools:
            words = [int(word) & MASK for word in pool[slot].clone().view(torch.int64).tolist()]
            own = 0
            for word in words:
                own = mix_bits(own ^ word)
            content = mix_bits(content ^ own)
        token = position + 5
        records.append([token, position, to_signed(chain), to_signed(content)])
        chain = mix_bits(mix_bits(mix_bits(chain) ^ token) ^ position)
    return records


def mix_bits(value: int) -> int:
    """Mix the bits of a word: the last rounds of SplitMix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
