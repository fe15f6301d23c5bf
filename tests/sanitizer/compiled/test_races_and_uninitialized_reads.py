"""Races and reads of uninitialized memory, by the GPU's checks run on this machine."""

from __future__ import annotations

from typing import Any

import kernels_to_check as known
import pytest
import torch
import triton
import triton.language as tl
from cpu_runs import find_violations, launch_on_cpu, run_checked, run_on_cpu  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.checking import DataRace, UninitializedMemory
from harness.sanitizer.gpu import ALL_CHECKS, POISON, shadow_entries, shadow_memory
from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES


def find_headlines(
    kernel: Any, *args: Any, grid: tuple[int, ...] = (2,), **named: Any
) -> list[str]:
    found = find_violations(kernel, *args, grid=grid, checks=ALL_CHECKS, **named)
    assert all(isinstance(violation, (DataRace, UninitializedMemory)) for violation in found)
    return [violation.headline for violation in found]


def make_numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32)


def test_atomics_and_what_is_a_programs_own_are_no_race() -> None:
    assert find_headlines(known.read_beside, make_numbers(2), make_numbers(2), 0) == []
    assert find_headlines(known.count_programs, make_numbers(1), grid=(5,)) == []
    assert find_headlines(read_beside_an_atomic, make_numbers(1), make_numbers(5), grid=(5,)) == []


def test_of_several_that_read_the_other_one_is_found() -> None:
    """The program that writes was the last to read."""
    assert find_headlines(read_by_all, make_numbers(1), make_numbers(4), grid=(4,)) == [
        "read_by_all: program (2, 0, 0) reads and program (3, 0, 0) writes "
        "shared, index 0, without an order"
    ]


@triton.jit
def read_beside_an_atomic(shared, target):
    me = tl.program_id(0)
    if me == 0:
        tl.atomic_add(shared, 1)
    else:
        tl.store(target + me, tl.load(shared))


@triton.jit
def read_by_all(shared, target):
    me = tl.program_id(0)
    tl.store(target + me, tl.load(shared))
    if me == tl.num_programs(0) - 1:
        tl.store(shared, 7)


@triton.jit
def in_turns(target, rows, step, WIDTH: tl.constexpr):
    """Write this program's own rows in sequence, or its neighbour's from some step on."""
    lane = tl.arange(0, WIDTH)
    at = target + tl.program_id(0) * rows * WIDTH + lane
    for row in range(rows):
        tl.store(at, lane + row + 100 * tl.program_id(0), mask=lane < WIDTH - 1)
        at += step * WIDTH


def test_a_race_is_found_through_a_loop() -> None:
    assert find_headlines(in_turns, make_numbers(64), 4, 1, WIDTH=8) == []
    [headline] = find_headlines(in_turns, make_numbers(96), 4, 2, WIDTH=8)
    assert "program (0, 0, 0) and program (1, 0, 0) write different values to target" in headline


@triton.jit
def under_a_lock(lock, target):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(target, tl.load(target) + tl.program_id(0) + 1)
    tl.atomic_xchg(lock, 0)


@triton.jit
def after_a_flag(flag, target):
    if tl.program_id(0) == 0:
        tl.store(target, 7)
        tl.atomic_xchg(flag, 1)
    else:
        flag_value = 0
        while flag_value == 0:
            flag_value = tl.load(flag, volatile=True)
        tl.store(target, 8)


def test_programs_that_synchronize_by_atomics_are_not_checked_for_races() -> None:
    for kernel in (under_a_lock, after_a_flag):
        checked, _ = run_checked(
            kernel, (make_numbers(1), make_numbers(1)), {}, (2,), checks=ALL_CHECKS
        )
        assert "races, as its programs may tell each other something" in checked.unchecked_accesses
        assert find_headlines(kernel, make_numbers(1), make_numbers(1)) == []


@triton.jit
def two_widths(wide, narrow, value):
    if tl.program_id(0) == 0:
        tl.store(wide, value.to(tl.int64))
    else:
        tl.store(narrow + 1, 5)


def test_what_overlaps_is_one_place_however_wide_it_is_written() -> None:
    place = torch.zeros(1, dtype=torch.int64)
    arguments = place, place.view(torch.int32)
    assert find_headlines(two_widths, *arguments, 5 << 32) == []
    [headline] = find_headlines(two_widths, *arguments, 6 << 32)
    assert "write different values to narrow, index 1" in headline
    assert find_headlines(two_widths, place, make_numbers(2), 6 << 32) == []


PROGRAMS, PLACES = 3, 4


@triton.jit
def follow_orders(shared, orders, values, target, COUNT: tl.constexpr):
    """Follow a list of orders of each program: load or store an element."""
    me = tl.program_id(0)
    for turn in range(COUNT):
        order = tl.load(orders + me * COUNT + turn)
        place = shared + order // 3
        if order % 3 == 1:
            tl.store(place, tl.load(values + me * COUNT + turn))
        elif order % 3 == 2:
            tl.store(target + me, tl.load(place))


ORDERS = st.lists(
    st.tuples(st.integers(0, 3 * PLACES - 1), st.integers(1, 3)), min_size=3, max_size=3
)


@settings(deadline=None)
@given(orders=st.lists(ORDERS, min_size=PROGRAMS, max_size=PROGRAMS))
def test_a_race_is_reported_only_for_shared_elements(orders: Any) -> None:
    """A reported element was accessed by two programs, one of which wrote it. A report is certain
    if two programs wrote different values, each once, and none read.
    """
    shared, target = torch.zeros(PLACES, dtype=torch.int32), torch.zeros(PROGRAMS).int()
    codes, values = (torch.tensor(orders, dtype=torch.int32)[:, :, i].contiguous() for i in (0, 1))
    found = find_headlines(follow_orders, shared, codes, values, target, grid=(PROGRAMS,), COUNT=3)
    wrote = [{(o // 3, v) for o, v in program_orders if o % 3 == 1} for program_orders in orders]
    read = [{o // 3 for o, _ in program_orders if o % 3 == 2} for program_orders in orders]
    touched = {
        place
        for me, own_writes in enumerate(wrote)
        for place, value in own_writes
        for other in range(PROGRAMS)
        if other != me
        and (place in read[other] or any(p == place and v != value for p, v in wrote[other]))
    }
    places = {int(headline.split("shared, index ")[1].split(",")[0]) for headline in found}
    assert places <= touched
    once = all(len({place for place, _ in own_writes}) == len(own_writes) for own_writes in wrote)
    if once and not any(read):
        assert bool(found) == bool(touched)


def test_numbers_of_launches_come_back_to_cleared_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables and the numbers are 128 times fewer here: a launch clears as much of them."""
    launch_count = shadow_entries.LAUNCH_NUMBER_COUNT // 128
    entry_count = shadow_memory._ENTRY_COUNT // 128
    monkeypatch.setattr(shadow_memory, "LAUNCH_NUMBER_COUNT", launch_count)
    monkeypatch.setattr(shadow_memory, "_ENTRY_COUNT", entry_count)
    shadows = shadow_memory.RaceShadowMemory("cpu")
    shadows._tables[:] = 1
    shadows._launch_numbers[0] = -1 + (1 << 40)
    for _ in range(launch_count // 2):
        shadows.begin_launch(launch_on_cpu, captured=False)
    assert not shadows._tables.any()
    numbers = {shadows.begin_launch(launch_on_cpu, captured=True) for _ in range(3)}
    assert len(numbers) == 3


# Uninitialized memory


def make_empty(count: int, kind: torch.dtype = torch.int32) -> torch.Tensor:
    tensor = torch.empty(count, dtype=kind)
    tensor.view(torch.uint8).fill_(POISON)
    EMPTY_STORAGES.register(tensor)
    return tensor


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *((getattr(torch, name), 1) for name in "float16 bfloat16 float32 int64 float64".split()),
        (torch.uint8, 0),
        (torch.float8_e4m3fn, 0),
    ],
)
@pytest.mark.parametrize("count", [5, 8])
def test_uninitialized_memory_is_recognized_by_its_bytes(
    kind: torch.dtype, expected: int, count: int
) -> None:
    source, target = make_empty(count, kind), torch.zeros(8, dtype=kind)
    assert len(find_headlines(known.copy, source, target, count, 0, grid=(1,), BLOCK=8)) == expected


def test_a_number_that_looks_like_the_pattern_is_none() -> None:
    source = make_numbers(8)
    source.view(torch.uint8).fill_(POISON)
    assert (
        find_headlines(known.copy, source, make_numbers(8), 8, 0, grid=(1,), BLOCK=8) == []
    )  # never empty
    source = make_empty(8)
    source[::2] = 1
    assert find_headlines(known.copy, source, make_numbers(8), 8, 0, grid=(1,), BLOCK=8) == []


def test_at_a_tensors_end_an_element_stands_alone() -> None:
    whole = make_numbers(8)
    whole[4:5].view(torch.uint8).fill_(POISON)
    EMPTY_STORAGES.register(whole)
    [headline] = find_headlines(known.copy, whole[:5], make_numbers(8), 5, 0, grid=(1,), BLOCK=8)
    assert "index 4" in headline


@triton.jit
def with_a_stand_in(source, target, count, other, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count, other=other))


def test_the_other_value_of_a_masked_lane_is_no_read() -> None:
    other = int.from_bytes(bytes([POISON] * 4), "little", signed=True)
    source = make_empty(8)
    source[:4] = 1
    assert (
        find_headlines(with_a_stand_in, source, make_numbers(8), 4, other, grid=(1,), BLOCK=8) == []
    )
    assert (
        find_headlines(with_a_stand_in, source, make_numbers(8), 6, other, grid=(1,), BLOCK=8) != []
    )


def test_an_update_reads_what_it_updates() -> None:
    [headline] = find_headlines(known.count_programs, make_empty(2), grid=(1,))
    assert "count_programs updated uninitialized memory: target, index 0" in headline


def test_freed_memory_is_no_longer_uninitialized() -> None:
    source = make_empty(1 << 20)
    start = source.data_ptr()
    assert EMPTY_STORAGES.contains(start)
    del source
    assert not EMPTY_STORAGES.contains(start)
