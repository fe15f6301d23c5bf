"""Autotuned kernels and helpers that are not inlined."""

import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (8, 16, 32)], key=["count"])
@triton.jit
def copy_in_blocks(source, target, count, BLOCK: tl.constexpr):
    """The second and third configuration read past the end."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at), mask=at < count)


@triton.jit(noinline=True)
def scale(value, factor):
    if factor > 1.0:
        return value * factor + 1
    return value


@triton.jit
def scale_first(source, target):
    tl.store(target, scale(tl.load(source), 2.0))
