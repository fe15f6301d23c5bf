"""Rows that wrap around at a remainder: `(start + lane) % width`, checked as one row each."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.checking import IntegerOverflow, OutOfBounds

sys.path.insert(0, str(Path(__file__).parents[1] / "checked"))
from cpu_runs import find_violations, float16_zeros, int32_zeros, run_on_cpu  # noqa: F401
from test_instrumentation import compile_kernel, sites

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


def remainder(number: int, divisor: int) -> int:
    """Return the remainder as CUDA has it: with the dividend's sign."""
    return number % divisor if number >= 0 else -(-number % divisor)


@settings(deadline=None)  # the first one compiles
@given(
    size=st.integers(1, 300),
    start=st.integers(-200, 200),
    width=st.integers(1, 100),
    stride=st.integers(0, 60),
    turns=st.integers(0, 2),
)
@example(size=96 + 40, start=80, width=96, stride=40, turns=1)  # the largest one is just inside
@example(size=96 + 39, start=80, width=96, stride=40, turns=1)
@example(size=32, start=0, width=32, stride=0, turns=1)
@example(size=7, start=100, width=7, stride=0, turns=1)  # the row wraps around several times
@example(size=3, start=-31, width=3, stride=0, turns=1)  # from below 0, as in C
@example(size=50, start=10, width=90, stride=0, turns=2)  # it does not reach the divisor
def test_a_row_is_outside_exactly_if_one_of_its_lanes_is(
    size: int, start: int, width: int, stride: int, turns: int
) -> None:
    memory = torch.zeros(AROUND + size + AROUND, dtype=torch.int32)
    target = memory[AROUND:-AROUND]
    args = (target, start, width, stride, turns)
    found = find_violations(store_wrapped_rows, *args, ROWS=ROWS, WIDTH=WIDTH)
    reached = {
        row * stride + remainder(start + lane, width)
        for row in range(ROWS * turns)
        for lane in range(WIDTH)
    }
    outside = any(not 0 <= at < size for at in reached)
    assert bool(found) == outside
    assert not memory[:AROUND].any()
    assert not memory[-AROUND:].any()
    if not outside:
        assert set(target.nonzero().flatten().tolist()) == reached


def test_a_wrapped_row_is_reported_with_its_first_element_outside() -> None:
    [outside] = find_violations(store_wrapped_vector, int32_zeros(90), 80, 96, WIDTH=32)
    assert isinstance(outside, OutOfBounds)
    assert "past the end of target (its index 90," in outside.headline
    assert not find_violations(store_wrapped_vector, int32_zeros(96), 80, 96, WIDTH=32)


@pytest.mark.parametrize("start", [LARGEST - 10, LARGEST])
def test_an_overflow_in_front_of_the_remainder_is_reported(start: int) -> None:
    found = find_violations(store_wrapped_vector, int32_zeros(96), start, 96, WIDTH=32)
    assert any(isinstance(one, IntegerOverflow) for one in found)
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
    assert sites(checked) == [("read", 0), ("read", 1), ("write", 2)]
    assert len(checked.asm["ptx"]) < 4 * len(plain.asm["ptx"])
