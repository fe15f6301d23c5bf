"""Kernels with the GPU's checks, run on this machine: they report violations, and only those."""

from __future__ import annotations

import operator
from typing import Any

import kernels_to_check as known
import pytest
import tiles
import torch
import triton
import triton.language as tl
from cpu_runs import (
    find_violations,
    float16_zeros,
    int32_zeros,
    run_checked,
    run_on_cpu,  # noqa: F401
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_instrumentation import (
    by_step,
    in_branches,
    product,
    reset,
    while_it_lasts,
)

from harness.checking import IntegerOverflow, OutOfBounds
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY


@triton.jit
def while_it_grows(target, step, turns):
    at, turn = 0, 0
    while turn < turns:
        at += step
        turn += 1
    tl.store(target + at, 1)


@triton.jit
def of_sums(target, parts, count, N: tl.constexpr):
    lane = tl.arange(0, N)
    at = tl.cumsum(tl.load(parts + lane), 0)
    tl.store(target + at, 1, mask=lane < count)


@triton.jit
def at_sum(target, row, stride):
    tl.store(target + (row + stride) // 2, 1)


@triton.jit
def at_difference(target, row, stride):
    tl.store(target + (row - stride) // 2, 1)


@triton.jit
def at_shifted(target, row, stride):
    tl.store(target + (row << stride), 1)


@triton.jit
def row_of_two(first, second, target, which):
    lane = tl.arange(0, 8)
    tl.store(target + lane, tl.load(tl.where(which > 6, first, second) + lane))


@triton.jit
def kept_by_a_mask(target, flags, row, stride):
    tl.store(target + (flags & tl.maximum(row * stride, 0)), 1)


def find_kinds(kernel: Any, *args: Any, **named: Any) -> tuple[bool, bool]:
    """Return whether an access was out of bounds, and whether an integer overflowed."""
    found = find_violations(kernel, *args, **named)
    return tuple(
        any(isinstance(violation, kind) for violation in found)
        for kind in (OutOfBounds, IntegerOverflow)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("kernel", tiles.KERNELS)
@settings(deadline=None)  # the first one compiles
@given(tile=tiles.TILES)
@example(tile=tiles.Tile(4, 32, 32, 0))
@example(tile=tiles.Tile(4, 32, 32, 1))
@example(tile=tiles.Tile(1, 32, 0, tiles.INT32 - 31))
def test_an_enabled_lane_out_of_bounds_is_reported_and_masked_off(
    kernel: Any, tile: tiles.Tile
) -> None:
    around, size = tiles.AROUND, tiles.ROWS * tiles.WIDTH
    memory = torch.zeros(around + size + around, dtype=torch.int32)
    target = memory[around:-around]
    named = {"ROWS": tiles.ROWS, "WIDTH": tiles.WIDTH}
    outside, wrapped = find_kinds(kernel, target, *tile.arguments, **named)
    assert wrapped == tile.wraps(kernel)
    assert wrapped or outside == any(not 0 <= at < size for at in tile.reached)
    assert not memory[:around].any()
    assert not memory[-around:].any()
    if not outside and not wrapped:
        assert set(target.nonzero().flatten().tolist()) == tile.reached


@pytest.mark.parametrize(
    ("kernel", "args", "named", "expected"),
    [
        (known.at_product, (int32_zeros(4), 3, 1 << 30), {}, (False, True)),
        (known.masked_product, (int32_zeros(4), 3, 1 << 30), {}, (False, False)),
        (known.wide_product, (int32_zeros(4), 3, 0), {}, (False, False)),
        (known.counted_outside, (int32_zeros(3), 3), {}, (True, False)),
        (by_step, (int32_zeros(512), int32_zeros(64), 3, 1), {"BLOCK": 64}, (False, False)),
        (by_step, (int32_zeros(512), int32_zeros(64), 3, 1 << 20), {"BLOCK": 64}, (True, False)),
        (by_step, (int32_zeros(512), int32_zeros(64), 3, 1 << 26), {"BLOCK": 64}, (False, True)),
        (reset, (int32_zeros(64), int32_zeros(64), 5, 1 << 30), {"BLOCK": 64}, (False, False)),
        (while_it_lasts, (int32_zeros(8), int32_zeros(8), 8, 2), {}, (True, False)),
        (while_it_grows, (int32_zeros(8), 1 << 28, 5), {}, (True, False)),
        (while_it_grows, (int32_zeros(8), 1 << 28, 9), {}, (False, True)),
        (while_it_grows, (int32_zeros(8), 0, 9), {}, (False, False)),
        (
            known.sum_index,
            (int32_zeros(8), torch.full((4,), 1 << 30, dtype=torch.int32)),
            {"N": 4},
            (False, True),
        ),
        (
            known.sum_index,
            (int32_zeros(8), torch.full((4,), 1, dtype=torch.int32)),
            {"N": 4},
            (False, False),
        ),
        (
            of_sums,
            (int32_zeros(8), torch.full((4,), 1 << 30, dtype=torch.int32), 1),
            {"N": 4},
            (True, False),
        ),
        (
            of_sums,
            (int32_zeros(8), torch.full((4,), 1 << 30, dtype=torch.int32), 4),
            {"N": 4},
            (True, True),
        ),
        (
            product,
            (float16_zeros(4096), float16_zeros(4096), float16_zeros(4096), 64),
            {"BLOCK": 64},
            (False, False),
        ),
        (
            product,
            (float16_zeros(4096), float16_zeros(4096), float16_zeros(4096), 128),
            {"BLOCK": 64},
            (True, False),
        ),
    ],
)
def test_violations_of_a_kernel_are_reported(
    kernel: Any, args: Any, named: Any, expected: tuple[bool, bool]
) -> None:
    assert find_kinds(kernel, *args, **named) == expected


WIDE = 1 << 63


def does_overflow(number: int, bits: int) -> bool:
    return not -(1 << (bits - 1)) <= number < 1 << (bits - 1)


NUMBERS = st.integers(-WIDE, WIDE - 1)
SMALL = st.integers(-(1 << 31), (1 << 31) - 1)
COMBINING = [
    (known.at_product, "*", operator.mul),
    (at_sum, "+", operator.add),
    (at_difference, "-", operator.sub),
    (at_shifted, "<<", operator.lshift),
]


@pytest.mark.parametrize(("kernel", "symbol", "combined"), COMBINING)
@settings(deadline=None)
@given(row=SMALL | NUMBERS, stride=SMALL | NUMBERS)
@example(row=-WIDE, stride=-1)
@example(row=3 << 40, stride=3 << 40)
@example(row=1 << 16, stride=1 << 16)
def test_overflow_is_reported_with_its_operands(
    kernel: Any, symbol: str, combined: Any, row: int, stride: int
) -> None:
    if symbol == "<<":
        stride %= 31
    bits = 64 if does_overflow(row, 32) or does_overflow(stride, 32) else 32
    true = combined(row, stride)
    found = [
        violation
        for violation in find_violations(kernel, int32_zeros(4), row, stride)
        if isinstance(violation, IntegerOverflow)
    ]
    assert bool(found) == does_overflow(true, bits)
    if found:
        became = (true + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        assert found[0].details[0] == (
            f"{row} {symbol} {stride} became {became}: more than int{bits} holds"
        )


@pytest.mark.parametrize(
    ("kernel", "args", "named", "words"),
    [
        (
            known.narrow_index,
            (int32_zeros(4), torch.tensor([3 << 31])),
            {},
            "6442450944 narrowed to int32",
        ),
        (
            known.sum_index,
            (int32_zeros(8), torch.full((8,), 1 << 30, dtype=torch.int32)),
            {"N": 8},
            "a sum of 8589934592 became 0 in int32",
        ),
        (in_branches, (int32_zeros(4), 3, 1 << 30, 4), {}, "3 * 1073741824 became -1073741824"),
        (in_branches, (int32_zeros(4), 3, 1 << 30, 3), {}, None),
        (in_branches, (int32_zeros(4), 3, 1 << 30, 5), {}, None),
        (in_branches, (int32_zeros(4), 1 << 20, 1 << 20, 4), {}, "1048576 * 1048576 became 0"),
        (at_shifted, (int32_zeros(4), 5 << 40, -1), {}, f"{5 << 40} << {(1 << 64) - 1} became 0"),
        (kept_by_a_mask, (int32_zeros(4), -1, 65537, 65537), {}, "65537 * 65537 became 131073"),
        (kept_by_a_mask, (int32_zeros(4), 3, 1, 1), {}, None),
    ],
)
def test_other_overflow_is_reported_with_its_operands(
    kernel: Any, args: Any, named: Any, words: str | None
) -> None:
    found = [
        violation
        for violation in find_violations(kernel, *args, **named)
        if isinstance(violation, IntegerOverflow)
    ]
    assert [violation.details[0].startswith(words or "") for violation in found] == [True] * bool(
        words
    )


@pytest.mark.parametrize(
    ("row", "stride", "wraps"),
    [(-1, 4, False), (1, -4, False), (-3 << 40, 3 << 40, True), (3 << 40, 3 << 40, True)],
)
def test_what_is_added_to_an_address_may_be_negative(row: int, stride: int, wraps: bool) -> None:
    target = int32_zeros(8)
    place = torch.tensor([target.data_ptr() + 16, row, stride])
    _, records = run_checked(known.at_address, (place,), {})
    assert bool(sum(record[0] & 0xFFFF for record in records)) == wraps
    assert wraps or target.tolist() == [0] * 3 + [1] + [0] * 4


@pytest.mark.parametrize(
    ("which", "at", "words"),
    [
        (6, 0, []),
        (5, 6, []),
        (6, 3, ["read 4 bytes past the end of first (its index 4, and it is int32 [4])"]),
        (
            5,
            7,
            [
                "read 4 bytes past the end of second (its index 8, and it is int32 [8])",
                "wrote 4 bytes past the end of second (its index 8, and it is int32 [8])",
            ],
        ),
    ],
)
def test_a_pointer_of_several_arguments_is_checked_against_the_one_chosen(
    which: int, at: int, words: list[str]
) -> None:
    both = torch.zeros(12, dtype=torch.int32)
    found = find_violations(known.one_of_two, both[:4], both[4:], int32_zeros(1), which, at)
    assert [violation.headline.removeprefix("one_of_two ") for violation in found] == words
    assert any("wrote" in headline for headline in words) == (7 not in both.tolist())


def test_a_pointer_from_a_table_is_checked_against_its_storage() -> None:
    pools = [torch.arange(16, dtype=torch.int32) + 100 * pool for pool in range(3)]
    for pool in pools:
        STORAGE_REGISTRY.register(pool, "a pool")
    table = torch.tensor([pool.data_ptr() for pool in pools])
    target = int32_zeros(8)
    assert not find_violations(known.copied_from_table, table, target, 16, 1)
    assert target.tolist() == list(range(108, 116))
    [outside] = find_violations(known.copied_from_table, table, target, 24, 1)
    assert outside.headline == (
        "copied_from_table read 4 bytes past the end of a pool (its index 16, and it is int32 [16])"
    )


def test_a_row_that_leaves_its_memory_is_reported_with_its_first_lane_outside() -> None:
    short = int32_zeros(12)
    STORAGE_REGISTRY.register(short, "a short pool")
    table = torch.tensor([int32_zeros(1).data_ptr(), short.data_ptr()])
    [outside] = find_violations(known.copied_from_table, table, int32_zeros(8), 16, 1)
    assert "read 4 bytes past the end of a short pool (its index 12," in outside.headline
    [outside] = find_violations(row_of_two, int32_zeros(4), int32_zeros(8), int32_zeros(8), 7)
    assert "read 4 bytes past the end of first (its index 4," in outside.headline
    assert not find_violations(row_of_two, int32_zeros(4), int32_zeros(8), int32_zeros(8), 6)


def test_an_address_in_no_known_storage_may_point_anywhere() -> None:
    unknown = int32_zeros(64)
    STORAGE_REGISTRY.register(int32_zeros(8), "a tensor that is gone")
    table = torch.tensor([unknown[:16].data_ptr()])
    _, records = run_checked(known.copied_from_table, (table, int32_zeros(8), 24, 0), {})
    assert not any(map(any, records))
