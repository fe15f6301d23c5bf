"""Kernels of a small suite that knows nothing of this project."""

import triton
import triton.language as tl


@triton.jit
def copy_block(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at), mask=at < count)


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (8, 16)], key=["count"])
@triton.jit
def copy_tuned(x, y, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count), mask=at < count)


@triton.jit
def find_lanes(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    lanes = tl.inline_asm_elementwise("activemask.b32 $0;", "=r", [], tl.int32, True, 1)
    tl.store(x + at, lanes)


@triton.jit
def exponentials(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    asm: tl.constexpr = "ex2.approx.f32 $0, $1;"
    tl.store(x + at, tl.inline_asm_elementwise(asm, "=f,f", [tl.load(x + at)], tl.float32, True, 1))


@triton.jit
def count_for_long(x, turns):
    total = 0
    for turn in range(turns):
        total += tl.load(x) * turn
    tl.store(x + 1, total)


@triton.jit
def assert_small(x):
    tl.device_assert(tl.load(x) < 8, "too large")
