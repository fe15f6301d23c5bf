"""Kernels of one operation or one kind of control flow each, compared with numpy."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def integers(x, y, divisor, shift, out, N: tl.constexpr):
    """Store a row of results for each operation."""
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    c, d = tl.load(divisor + at), tl.load(shift + at)
    results = (a + b, a - b, a * b)
    results += (a & b, a | b, a ^ b, tl.minimum(a, b), tl.maximum(a, b))
    results += (a // c, a % c, (a < b).to(a.dtype), a << d, a >> d)
    for number in tl.static_range(len(results)):
        tl.store(out + number * N + at, results[number])


@triton.jit
def tiles(x, y, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    at = i[:, None] * N + j[None, :]
    on = (i[:, None] < rows) & (j[None, :] < columns)
    value = tl.load(x + at, mask=on, other=0.0) * 2 + tl.load(y + j)[None, :]
    tl.store(out + at, value, mask=on)


@triton.jit
def fold_axis(x, out, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    value = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if OP == "sum":
        r = tl.sum(value, AXIS)
    elif OP == "max":
        r = tl.max(value, AXIS)
    elif OP == "min":
        r = tl.min(value, AXIS)
    else:
        r = tl.argmax(value, AXIS)
    tl.store(out + tl.arange(0, N if AXIS == 0 else M), r)


@triton.jit
def scan_rows(x, out, M: tl.constexpr, N: tl.constexpr, BACKWARDS: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.cumsum(tl.load(x + at), 1, reverse=BACKWARDS))


@triton.jit
def transpose_values(x, out, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    value = tl.load(x + i[:, None] * N + j[None, :])
    tl.store(out + j[:, None] * M + i[None, :], tl.trans(value))


@triton.jit
def join_and_split(x, y, both, first, second, N: tl.constexpr):
    at = tl.arange(0, N)
    pair = tl.join(tl.load(x + at), tl.load(y + at))
    tl.store(both + at[:, None] * 2 + tl.arange(0, 2)[None, :], pair)
    a, b = tl.split(pair)
    tl.store(first + at, b)
    tl.store(second + at, a)


@triton.jit
def multiply_matrices(x, y, out, K: tl.constexpr):
    i, k = tl.arange(0, 16), tl.arange(0, K)
    a = tl.load(x + i[:, None] * K + k[None, :])
    b = tl.load(y + i[:, None] * K + k[None, :])
    value = tl.dot(a, tl.trans(b), input_precision="ieee")
    tl.store(out + i[:, None] * 16 + i[None, :], value)


@triton.jit
def looping(x, counts, out, N: tl.constexpr):
    at = tl.arange(0, N)
    total = tl.zeros((N,), dtype=tl.int32)
    pointer = x + at
    for _ in range(tl.load(counts + tl.program_id(0))):
        total += tl.load(pointer)
        pointer += N
    tl.store(out + tl.program_id(0) * N + at, total)


@triton.jit
def branching(x, out):
    me = tl.program_id(0)
    value = tl.load(x + me)
    if value > 0:
        result = value * 10
    elif value < -2:
        result = value - 100
    else:
        result = 7
    tl.store(out + me, result)


@triton.jit
def returning(x, out):
    me = tl.program_id(0)
    value = tl.load(x + me)
    if value < 0:
        return
    if value > 2:
        tl.store(out + me, value * 3)
        return
    tl.store(out + me, value)


@triton.jit
def counted_down(x, out):
    value = tl.load(x + tl.program_id(0))
    turns = 0
    while value > 0:
        value = value // 2
        turns += 1
    tl.store(out + tl.program_id(0), turns)


@triton.jit
def swapping(x, y, turns, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    for _ in range(turns):
        a, b = b, a
    tl.store(x + at, a)
    tl.store(y + at, b)


@triton.jit
def shift_in_place(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at + 1, tl.load(x + at))


@triton.jit
def compact_nonzero(x, count, out):
    me = tl.program_id(0)
    if tl.load(x + me) != 0:
        tl.store(out + tl.atomic_add(count, 1), me)


@triton.jit
def compare_pair(a, b):
    if a < b:
        return a * 2
    return b + 1


@triton.jit
def map_pairs(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    r = tl.map_elementwise(compare_pair, tl.load(x + at), tl.load(y + at))
    tl.store(out + at, r)


@triton.jit
def order_two(a0, a1, b0, b1):
    return tl.minimum(a0, a1), tl.minimum(b0, b1), tl.maximum(a0, a1), tl.maximum(b0, b1)


@triton.jit
def map_packed(x, y, low, high, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.map_elementwise(order_two, tl.load(x + at), tl.load(y + at), pack=2)
    tl.store(low + at, a)
    tl.store(high + at, b)


@triton.jit
def multiply_scaled(
    x, x_scale, y, y_scale, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, M), tl.arange(0, N)
    per_a: tl.constexpr = 2 if A == "e2m1" else 1
    per_b: tl.constexpr = 2 if B == "e2m1" else 1
    ka, kb, ks = tl.arange(0, K // per_a), tl.arange(0, K // per_b), tl.arange(0, K // 32)
    a = tl.load(x + i[:, None] * (K // per_a) + ka[None, :])
    b = tl.load(y + kb[:, None] * N + j[None, :])
    sa = tl.load(x_scale + i[:, None] * (K // 32) + ks[None, :])
    sb = tl.load(y_scale + j[:, None] * (K // 32) + ks[None, :])
    tl.store(out + i[:, None] * N + j[None, :], tl.dot_scaled(a, sa, A, b, sb, B))


@triton.jit
def assert_statically(x, N: tl.constexpr):
    tl.static_assert(N > 100, "N is too small")
    tl.store(x, N)


@triton.jit
def use_missing_name(x):
    tl.store(x, nothing_of_this_name)  # noqa: F821
