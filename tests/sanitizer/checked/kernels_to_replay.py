"""Versions of one kernel: the same, one that rounds otherwise, one that is wrong, one too far."""

import triton
import triton.language as tl


@triton.jit
def scale(x, y, size, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0)
    tl.store(y + at, value * factor * 3.0, mask=at < size)


@triton.jit
def scale_renamed(x, y, size, factor, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + where, mask=where < size, other=0.0)
    tl.store(y + where, numbers * factor * 3.0, mask=where < size)


@triton.jit
def scale_in_another_order(x, y, size, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0)
    tl.store(y + at, value * (factor * 3.0), mask=at < size)


@triton.jit
def scale_all_but_the_last(x, y, size, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0)
    tl.store(y + at, value * factor * 3.0, mask=at < size - 1)


@triton.jit
def scale_without_a_mask(x, y, size, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * factor * 3.0)


@triton.jit
def scale_and_shift(x, y, size, factor, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0)
    tl.store(y + at, value * factor * 3.0 + shift, mask=at < size)


@triton.jit
def add_rows(x, y, out, stride_x, stride_y, SIZE: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    value = tl.load(x + row * stride_x + at) + tl.load(y + row * stride_y + at)
    tl.store(out + row * SIZE + at, value)


@triton.jit
def add_rows_by_one_stride(x, y, out, stride_x, stride_y, SIZE: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    value = tl.load(x + row * stride_x + at) + tl.load(y + row * stride_x + at)
    tl.store(out + row * SIZE + at, value)
