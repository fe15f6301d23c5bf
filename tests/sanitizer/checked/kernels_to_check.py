"""Small kernels, most of them with one violation if launched with certain arguments."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy(source, target, count, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at + shift, mask=at < count)
    tl.store(target + at, value, mask=at < count)


@triton.jit
def move_block(source, target, count, shift, BLOCK: tl.constexpr):
    """Copy one block per program of a 2D grid, shifted by some elements."""
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    at = program * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at + shift, mask=at < count, other=0)
    tl.store(target + at + shift, value, mask=at < count)


@triton.jit
def at_product(target, row, stride):
    tl.store(target + row * stride, 1)


@triton.jit
def masked_product(target, row, stride):
    at = row * stride
    tl.store(target + at, 1, mask=at > 0)


@triton.jit
def through_loop(target, rows, STRIDE: tl.constexpr):
    for row in range(rows, rows + 1):
        tl.store(target + row * STRIDE, 1)


@triton.jit
def narrow_index(target, where):
    tl.store(target + tl.load(where).to(tl.int32), 1)


@triton.jit
def sum_index(target, parts, N: tl.constexpr):
    tl.store(target + tl.sum(tl.load(parts + tl.arange(0, N)), 0), 1)


@triton.jit
def broadcast_product(target, rows, stride, N: tl.constexpr):
    row = tl.load(rows + tl.arange(0, N))
    at = (row * stride)[:, None] + tl.arange(0, N)[None, :]
    tl.store(target + tl.where(at > 0, at, at), 1, mask=row[:, None] < 8)


@triton.jit
def wide_product(target, row, stride):
    tl.store(target + row.to(tl.int64) * stride, 1)


@triton.jit
def by_row(target, stride):
    tl.store(target + tl.program_id(0).to(tl.int64) * stride, 1)


@triton.jit
def value_overflows(target, row, stride):
    tl.store(target, row * stride)


@triton.jit
def same_place(target, value, STEP: tl.constexpr):
    tl.store(target, value + STEP * tl.program_id(0))


@triton.jit
def stored_and_counted(target, first):
    if tl.program_id(0) == first:
        tl.store(target, 5)
    else:
        tl.atomic_add(target, 1)


@triton.jit
def lanes(target, shared, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(target + at // shared, at)


@triton.jit
def store_by_descriptor(target, rows, BLOCK: tl.constexpr):
    blocks = tl.make_tensor_descriptor(
        target, shape=[rows, BLOCK], strides=[BLOCK, 1], block_shape=[1, BLOCK]
    )
    blocks.store([1, 0], tl.full((1, BLOCK), 7, tl.int32))


@triton.jit
def transpose_pointers(target, N: tl.constexpr):
    at = target + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(tl.trans(at), tl.full((N, N), 1, tl.int32))


@triton.jit
def choose_pointer(a, b, target, which):
    source = tl.where(which == 2, target, tl.where(which == 1, b, a))
    tl.store(target, tl.load(source))


@triton.jit
def overflows_twice(target, rows, stride, N: tl.constexpr):
    lane = tl.arange(0, N)
    first = tl.load(rows + lane) * stride
    tl.store(target + ((first + stride) // 2), 1, mask=lane != 0)


@triton.jit
def pack_index(target, value):
    tl.store(target + (((value << 16) | 3) & 0xFFFF), 1)


@triton.jit
def masked_by_number(source, target, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(target + at, tl.load(source + at, mask=(at >= 4) & 1))


@triton.jit
def count_programs(target):
    tl.atomic_add(target, 1)


@triton.jit
def counted_outside(target, count):
    tl.atomic_add(target + count, 1)


@triton.jit
def through_table(table, target):
    source = tl.load(table).to(tl.pointer_type(tl.int32))
    tl.store(target, tl.load(source + 1))


@triton.jit
def at_address(place):
    base, row, stride = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    product = row * stride
    address = base + tl.where(product > 64, 64, tl.where(product < -64, -64, product))
    tl.store(address.to(tl.pointer_type(tl.int32)), 1)


@triton.jit
def copied_from_table(table, target, count, which):
    """Rows of eight, one after the other."""
    source = tl.load(table + which).to(tl.pointer_type(tl.int32))
    lane = tl.arange(0, 8)
    for _ in range(0, count, 8):
        tl.store(target + lane, tl.load(source + lane))
        source += 8


@triton.jit
def along_a_list(links, target, count):
    """Each step reads the address of the next one."""
    link = links
    for _ in range(count):
        link = tl.load(link).to(tl.pointer_type(tl.int64))
    tl.store(target, tl.load(link))


@triton.jit
def one_of_two(first, second, target, which, at):
    source = first + 1 if which > 5 else second + 1
    tl.store(target, tl.load(source + at))
    tl.store(tl.where(which > 6, first, second) + at + 1, 7)


@triton.jit
def inner(source, at):
    return tl.load(source + at)


@triton.jit
def outer(source, target, at):
    tl.store(target, inner(source, at))


@triton.jit
def by_block(source, target, rows, BLOCK: tl.constexpr):
    blocks = tl.make_tensor_descriptor(
        source, shape=[rows, BLOCK], strides=[BLOCK, 1], block_shape=[2, BLOCK]
    )
    values = tl.sum(blocks.load([0, 0]), 0)
    tl.store(target + tl.arange(0, BLOCK), values)


@triton.jit
def run_assembly(target):
    value = tl.inline_asm_elementwise(
        "activemask.b32 $0;", "=r", [], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(target, value)


@triton.jit
def read_beside(shared, target, step):
    """By step: a program writes an element that another reads, before or after it, or its own."""
    me = tl.program_id(0)
    if step == 0:
        tl.store(shared + me, tl.load(shared + me) + 5)
    elif (me == 0) == (step > 0):
        tl.store(shared, 7)
    else:
        tl.store(target + me, tl.load(shared))


@triton.jit
def waiting(flag):
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, 0) == 0:
            pass
    else:
        tl.atomic_xchg(flag, 1)


@triton.jit
def through_a_descriptor(rows, sums):
    me = tl.program_id(0)
    block = rows.load([me * 4, 0])
    rows.store([me * 4, 0], block + 1)
    tl.store(sums + me, tl.sum(tl.sum(block, 1), 0))


@triton.jit
def by_rows(source, target, stride: tl.constexpr, width: tl.constexpr, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(source + row * stride + lane, mask=lane < width)
    tl.store(target + row * width + lane, values, mask=lane < width)
