"""Rows that wrap around at a remainder: `(start + lane) % width`, checked as one row each."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl
from cpu_runs import (  # noqa: F401
    find_violations,
    float16_zeros,
    int32_zeros,
    run_checked,
    run_on_cpu,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_instrumentation import compile_kernel, list_sites

from harness.checking import IntegerOverflow, OutOfBounds
from harness.sanitizer.ir import flow

ROWS, WIDTH = 2, 32  # of a tile
AROUND = 256  # elements of memory on each side of the tensor
LARGEST = (1 << 31) - 1


@triton.jit
def store_wrapped_rows(
    target, start, width, stride, turns, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    pointer = target + row[:, None] * stride + ((start + lane) % width)[None, :]
    for _ in range(turns):
        tl.store(pointer, 1)
        pointer += ROWS * stride


@triton.jit
def store_wrapped_vector(target, start, width, WIDTH: tl.constexpr):
    tl.store(target + (start + tl.arange(0, WIDTH)) % width, 1)


@triton.jit
def store_from_a_place(target, start, width, place, WIDTH: tl.constexpr):
    tl.store(target + place + (start + tl.arange(0, WIDTH)) % width, 1)


@triton.jit
def masked_lanes(target, start, width, count, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    tl.store(target + (start + lane) % width, 1, mask=lane < count)


@triton.jit
def two_remainders(target, start, width, other, turns, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    pointer = target + (start + lane) % width
    for turn in range(turns):
        tl.store(pointer, 1)
        pointer = target + (turn + lane) % other


@triton.jit
def product_of_columns(left, right, target, wide, deep, BLOCK: tl.constexpr):
    row, lane = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    column = (tl.program_id(0) * BLOCK + lane) % wide
    first = left + row[:, None] * deep + lane[None, :]
    second = right + lane[:, None] * wide + column[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, deep, BLOCK):
        total = tl.dot(tl.load(first), tl.load(second), total)
        first += BLOCK
        second += BLOCK * wide
    tl.store(target + row[:, None] * BLOCK + lane[None, :], total.to(tl.float16))


@triton.jit
def store_enabled_rows(
    target, start, width, stride, enabled, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    pointer = target + row[:, None] * stride + ((start + lane) % width)[None, :]
    tl.store(pointer, 1, mask=(enabled >> row[:, None]) & 1 != 0)


@triton.jit
def store_wrapped_int64(target, start, width, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH).to(tl.int64)
    tl.store(target + (start + lane) % width, 1)


def compute_remainder(number: int, divisor: int) -> int:
    """Return the remainder as CUDA has it: with the dividend's sign."""
    size = abs(divisor)
    return number % size if number >= 0 else -(-number % size)


def wrap_to_int32(number: int) -> int:
    """Return the number that 32 bits hold."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


widths = st.integers(-100, 100).filter(bool)


@settings(deadline=None)  # the first one compiles
@given(
    size=st.integers(1, 300),
    start=st.integers(-200, 200),
    width=widths,
    stride=st.integers(0, 60),
    turns=st.integers(0, 2),
)
@example(size=96 + 40, start=80, width=96, stride=40, turns=1)  # the largest one is just inside
@example(size=96 + 39, start=80, width=96, stride=40, turns=1)
@example(size=32, start=0, width=32, stride=0, turns=1)
@example(size=7, start=100, width=7, stride=0, turns=1)  # the row wraps around several times
@example(size=3, start=-31, width=3, stride=0, turns=1)  # from below 0, as in C
@example(size=50, start=10, width=90, stride=0, turns=2)  # it does not reach the divisor
@example(size=96, start=80, width=-96, stride=0, turns=1)
def test_a_row_is_outside_exactly_if_one_of_its_lanes_is(
    size: int, start: int, width: int, stride: int, turns: int
) -> None:
    memory = torch.zeros(AROUND + size + AROUND, dtype=torch.int32)
    target = memory[AROUND:-AROUND]
    args = (target, start, width, stride, turns)
    found = find_violations(store_wrapped_rows, *args, ROWS=ROWS, WIDTH=WIDTH)
    reached = {
        row * stride + compute_remainder(start + lane, width)
        for row in range(ROWS * turns)
        for lane in range(WIDTH)
    }
    outside = any(not 0 <= at < size for at in reached)
    assert [type(violation) for violation in found] == [OutOfBounds] * outside
    assert not memory[:AROUND].any()
    assert not memory[-AROUND:].any()
    if not outside:
        assert set(target.nonzero().flatten().tolist()) == reached


@settings(deadline=None)
@given(
    size=st.integers(1, 200),
    start=st.integers(-150, 150),
    width=widths,
    stride=st.integers(0, 60),
    enabled=st.integers(0, 3),
)
@example(size=96, start=80, width=96, stride=2, enabled=1)  # the second row alone is outside
@example(size=96, start=80, width=96, stride=2, enabled=2)
@example(size=10, start=80, width=96, stride=2, enabled=0)
def test_a_row_that_a_mask_removes_is_not_outside(
    size: int, start: int, width: int, stride: int, enabled: int
) -> None:
    target = int32_zeros(size)
    args = (target, start, width, stride, enabled)
    found = find_violations(store_enabled_rows, *args, ROWS=ROWS, WIDTH=WIDTH)
    reached = [
        {row * stride + compute_remainder(start + lane, width) for lane in range(WIDTH)}
        for row in range(ROWS)
        if enabled >> row & 1
    ]
    inside = [row for row in reached if all(0 <= at < size for at in row)]
    assert [type(violation) for violation in found] == [OutOfBounds] * (len(inside) < len(reached))
    # The other lanes of a row that is outside are removed unless it is checked lane by lane.
    stored = set(target.nonzero().flatten().tolist())
    assert set().union(*inside) <= stored <= set().union(*reached)


@settings(deadline=None)
@given(
    start=st.integers(LARGEST - 40, LARGEST),
    width=widths | st.sampled_from([-1, 1 << 30, LARGEST, -LARGEST, -LARGEST - 1]),
    low=st.integers(0, 100),
    size=st.integers(1, 200),
)
@example(start=LARGEST - 10, width=96, low=32, size=32)  # 21 to 31 and, behind it, -32 to -12
@example(start=LARGEST - 10, width=96, low=31, size=32)
@example(start=LARGEST - 10, width=96, low=32, size=31)
@example(start=LARGEST, width=-1, low=0, size=1)
@example(start=LARGEST - 31, width=32, low=0, size=32)
@example(start=LARGEST - 30, width=1, low=0, size=1)
def test_a_row_that_overflows_is_outside_exactly_if_one_of_its_lanes_is(
    start: int, width: int, low: int, size: int
) -> None:
    reached = {compute_remainder(wrap_to_int32(start + lane), width) for lane in range(WIDTH)}
    outside = any(not -low <= at < size for at in reached)
    target = int32_zeros(low + size)
    args = (store_from_a_place, target, start, width, low)
    found = find_violations(*args, WIDTH=WIDTH, checks=("bounds",))
    assert [type(violation) for violation in found] == [OutOfBounds] * outside
    if not outside:
        assert set(target.nonzero().flatten().tolist()) == {at + low for at in reached}
    both = [type(violation) for violation in find_violations(*args, WIDTH=WIDTH)]
    # Triton takes an argument of 1 for a constant, and the remainder by it for 0.
    overflows = start + WIDTH - 1 > LARGEST and width != 1
    assert both == [IntegerOverflow] * overflows + [OutOfBounds] * (outside and not overflows)


@settings(deadline=None)
@given(size=st.integers(1, 100), start=st.integers(-100, 100), width=widths)
@example(size=96, start=80, width=96)
@example(size=95, start=80, width=96)
def test_a_row_of_int64_is_outside_exactly_if_one_of_its_lanes_is(
    size: int, start: int, width: int
) -> None:
    target = int32_zeros(size)
    found = find_violations(store_wrapped_int64, target, start, width, WIDTH=WIDTH)
    reached = {compute_remainder(start + lane, width) for lane in range(WIDTH)}
    outside = any(not 0 <= at < size for at in reached)
    assert [type(violation) for violation in found] == [OutOfBounds] * outside
    if not outside:
        assert set(target.nonzero().flatten().tolist()) == reached


def test_the_largest_lane_of_int64_is_not_cut_to_32_bits() -> None:
    # The remainders are 0 to 15, and up to 2**32 + 99.
    args = (int32_zeros(90), (1 << 32) + 100 - 16, (1 << 32) + 100)
    options = {"WIDTH": WIDTH}
    instrumented, _ = run_checked(store_wrapped_int64, args, options, checks=("bounds",))
    definitions = flow.map_defining_operations(instrumented.graph)
    cut = [
        definitions[definition.operands[0]]
        for definition in definitions.values()
        if definition.name == "arith.trunci"
    ]
    assert {maker.name for maker in cut} <= {"arith.constant"}  # the number of the last lane
    [outside] = find_violations(store_wrapped_int64, *args, WIDTH=WIDTH)
    assert isinstance(outside, OutOfBounds)


def test_a_wrapped_row_is_reported_with_its_first_element_outside() -> None:
    [outside] = find_violations(store_wrapped_vector, int32_zeros(90), 80, 96, WIDTH=32)
    assert isinstance(outside, OutOfBounds)
    assert "past the end of target (its index 90," in outside.headline
    assert not find_violations(store_wrapped_vector, int32_zeros(96), 80, 96, WIDTH=32)


@pytest.mark.parametrize("start", [LARGEST - 10, LARGEST])
def test_an_overflow_in_front_of_the_remainder_is_reported(start: int) -> None:
    found = find_violations(store_wrapped_vector, int32_zeros(96), start, 96, WIDTH=32)
    assert any(isinstance(violation, IntegerOverflow) for violation in found)
    assert not find_violations(store_wrapped_vector, int32_zeros(96), LARGEST - 31, 96, WIDTH=32)


def test_lanes_that_a_mask_removes_are_not_counted() -> None:
    # Lanes 0 to 7 are at 80 to 87; those that would wrap around, or reach 90, are off.
    assert not find_violations(masked_lanes, int32_zeros(88), 80, 96, 8, WIDTH=32)
    assert find_violations(masked_lanes, int32_zeros(87), 80, 96, 8, WIDTH=32)


def test_a_pointer_of_two_remainders_is_checked_lane_by_lane() -> None:
    assert not find_violations(two_remainders, int32_zeros(50), 0, 50, 20, 2, WIDTH=32)
    assert find_violations(two_remainders, int32_zeros(50), 0, 50, 51, 40, WIDTH=32)


def test_a_product_with_wrapped_columns_moves_as_wide_as_without_checks() -> None:
    args = (*(float16_zeros(1 << 14),) * 3, 128, 64)
    plain, checked = (
        compile_kernel(product_of_columns, *args, checks=checks, BLOCK=64)
        for checks in ((), ("bounds", "overflow"))
    )

    def count(kernel_binary: object) -> list[int]:
        text = kernel_binary.asm["ptx"]  # type: ignore[attr-defined]
        return [len(re.findall(r"cp\.async\.\w+\.shared\.global", text))]

    assert count(checked) == count(plain) != [0]
    assert list_sites(checked) == [("read", 0), ("read", 1), ("write", 2)]
    assert len(checked.asm["ptx"]) < 4 * len(plain.asm["ptx"])
