"""Kernels with faults of several kinds."""

import triton
import triton.language as tl


@triton.jit
def keep_negative(x, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.minimum(tl.load(x + lanes), 0.0))


@triton.jit
def add_scaled(x, y, out, factor, count, N: tl.constexpr):
    """Add `x`, and `factor` times `y`, whose lanes from `count` on are masked after the load."""
    at = tl.arange(0, N)
    scaled = tl.where(at < count, tl.load(y + at), 0) * factor
    tl.store(out + at, tl.load(out + at) + tl.load(x + at) + scaled)


@triton.jit
def faulty(source, target, N: tl.constexpr):
    """Read past the end and what nobody wrote; both programs write different values."""
    at = tl.arange(0, 2 * N)
    value = tl.load(source + at)
    again = tl.load(source + tl.arange(0, N))
    tl.store(target + at, value, mask=at != 7)
    tl.store(target + 7, tl.program_id(0) + tl.sum(again) * 0)


@triton.jit
def wrapped_index(source, target, step, N: tl.constexpr):
    at = tl.arange(0, N) * step * step + tl.arange(0, N) * 2 * step
    tl.store(target + tl.arange(0, N), tl.load(source + at))


@triton.jit
def add_beside(total, N: tl.constexpr):
    tl.atomic_add(total + tl.arange(0, N), 1)
