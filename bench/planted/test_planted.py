"""Small kernels on CPU tensors, with one fault each or none: what does a sanitizer say of each?"""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_rows(x, y, count, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(y + at, tl.load(x + at, mask=at < count), mask=at < count)
    else:
        tl.store(y + at, tl.load(x + at), mask=at < count)


@triton.jit
def gather(table, x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + tl.load(table + at)))


@triton.jit
def shift(x, y, by, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at - by))


@triton.jit
def read_row(x, y, row, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + row * stride + at))


@triton.jit
def write_own_number(y):
    tl.store(y, tl.program_id(0))


@triton.jit
def read_neighbour(y):
    program = tl.program_id(0)
    tl.store(y + program, tl.load(y + program + 1) + 1)


@triton.jit
def count_programs(y):
    tl.atomic_add(y, 1)


@triton.jit
def add_in_steps(x, y, steps, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(steps):
        total += tl.load(x + step * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), total)


@triton.jit
def multiply(a, b, c, N: tl.constexpr):
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    product = tl.dot(tl.load(a + row * N + column), tl.load(b + row * N + column))
    tl.store(c + row * N + column, product)


def test_right_masked_copy():
    x = torch.ones(12)
    copy_rows[(2,)](x, torch.empty(12), 12, BLOCK=8, MASKED=True)


def test_right_gather():
    table = torch.tensor([3, 1, 0, 2], dtype=torch.int32)
    gather[(1,)](table, torch.ones(4), torch.empty(4), BLOCK=4)


def test_right_atomic_count():
    count_programs[(8,)](torch.zeros(1, dtype=torch.int32))


def test_right_product():
    multiply[(1,)](torch.ones(16, 16), torch.ones(16, 16), torch.empty(16, 16), N=16)


def test_right_loop():
    add_in_steps[(1,)](torch.ones(64), torch.empty(16), 4, BLOCK=16)


def test_wrong_read_past_the_end():
    copy_rows[(2,)](torch.ones(12), torch.empty(12), 12, BLOCK=8, MASKED=False)


def test_wrong_read_past_a_view():
    x = torch.ones(4, 12)[1]
    copy_rows[(2,)](x, torch.empty(12), 12, BLOCK=8, MASKED=False)


def test_wrong_index_in_a_table():
    table = torch.tensor([3, 1, 0, 9], dtype=torch.int32)
    gather[(1,)](table, torch.ones(4), torch.empty(4), BLOCK=4)


def test_wrong_read_before_the_beginning():
    shift[(1,)](torch.ones(16), torch.empty(16), 4, BLOCK=16)


def test_wrong_last_step_of_a_loop():
    add_in_steps[(1,)](torch.ones(56), torch.empty(16), 4, BLOCK=16)


def test_wrong_product_in_32_bits():
    read_row[(1,)](torch.ones(16), torch.empty(16), 1 << 16, 1 << 16, BLOCK=16)


def test_wrong_write_by_two_programs():
    write_own_number[(4,)](torch.empty(1, dtype=torch.int32))


def test_wrong_read_of_what_another_writes():
    read_neighbour[(4,)](torch.zeros(5))


def test_wrong_read_of_nothing():
    copy_rows[(2,)](torch.empty(12), torch.empty(12), 12, BLOCK=8, MASKED=True)
