"""Triton kernels in the ways that they are wrapped: plain, helped, autotuned, under heuristics."""

import triton
import triton.language as tl

SCALE = tl.constexpr(3)


@triton.jit
def widened(value):
    return value * 2


@triton.jit
def add_kernel(out, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + 1, mask=mask)


@triton.jit
def calling_kernel(out, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, widened(tl.load(x + offsets, mask=mask)), mask=mask)


@triton.heuristics({"BLOCK": lambda args: 16})
@triton.jit
def heuristic_kernel(out, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + 5, mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=["n"])
@triton.jit
def tuned_kernel(out, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + 7, mask=mask)


@triton.jit
def scaled_kernel(out, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) * SCALE, mask=mask)
