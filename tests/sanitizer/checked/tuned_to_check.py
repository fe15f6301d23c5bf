"""Autotuned kernels and helpers that are not inlined."""

import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (8, 16, 32)], key=["count"])
@triton.jit
def copy_in_blocks(source, target, count, BLOCK: tl.constexpr):
    """The second and third configuration read past the end."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at), mask=at < count)


WIDE = [triton.Config({"BLOCK": 8}, num_warps=64), triton.Config({"BLOCK": 4})]


@triton.autotune(configs=[*WIDE, triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=[])
@triton.jit
def copy_eight(source, target, BLOCK: tl.constexpr):
    """No card takes the first configuration; the second one fails a static assertion."""
    tl.static_assert(BLOCK >= 8)
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at))


@triton.jit(noinline=True)
def scale(value, factor):
    if factor > 1.0:
        return value * factor + 1
    return value


@triton.jit
def scale_first(source, target):
    tl.store(target, scale(tl.load(source), 2.0))
