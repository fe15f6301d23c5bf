"""Kernels for what a launch is: its result, its hooks, its options, its prints and assertions."""

import triton
import triton.language as tl
from triton.language.extra.cuda import num_threads


def describe_launch(grid, metadata, arguments):
    return {"rows": arguments["count"], "grid": grid}


@triton.jit(launch_metadata=describe_launch)
def double_numbers(x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    on = at < count
    tl.store(x + at, 2 * tl.load(x + at, mask=on), mask=on)


@triton.jit
def store_thread_count(x):
    tl.store(x, num_threads())


@triton.jit
def store_count_of(x, get_count: tl.constexpr):
    tl.store(x, get_count())


@triton.jit
def print_numbers(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.device_print("value", tl.load(x + at))
    tl.device_print("of", BLOCK * 1.5)


@triton.jit
def assert_small(x):
    tl.device_assert(tl.load(x) < 8, "too large")


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (16, 8)], key=["count"])
@triton.jit
def double_tuned(x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    on = at < count
    tl.store(x + at, 2 * tl.load(x + at, mask=on), mask=on)


@triton.jit
def multiply_tiles(x, y, out, K: tl.constexpr):
    i, j, k = tl.arange(0, 64), tl.arange(0, 128), tl.arange(0, K)
    a, b = tl.load(x + i[:, None] * K + k[None, :]), tl.load(y + k[:, None] * 128 + j[None, :])
    tl.store(out + i[:, None] * 128 + j[None, :], tl.dot(a, b))
