"""Kernels of exactly specified functions: libdevice, PTX, histograms, bfloat16 sums."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def round_results(x, y, out, N: tl.constexpr):
    """Store a row for each function that rounds to the nearest."""
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, libdevice.add_rn(a, b))
    tl.store(out + N + at, libdevice.mul_rn(a, b))
    tl.store(out + 2 * N + at, libdevice.div_rn(a, b))
    tl.store(out + 3 * N + at, libdevice.sqrt_rn(a))
    tl.store(out + 4 * N + at, libdevice.rcp_rn(a))
    tl.store(out + 5 * N + at, libdevice.fma_rn(a, b, a))


@triton.jit
def count_bits(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(out + at, libdevice.popc(a))
    tl.store(out + N + at, libdevice.clz(a))
    tl.store(out + 2 * N + at, libdevice.ffs(a))
    tl.store(out + 3 * N + at, libdevice.brev(a))


@triton.jit
def classify_floats(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(out + at, libdevice.isnan(a).to(tl.int32))
    tl.store(out + N + at, libdevice.isinf(a).to(tl.int32))
    tl.store(out + 2 * N + at, libdevice.signbit(a).to(tl.int32))


@triton.jit
def combine_pairs(x, y, out, ASM: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    pair = [tl.load(x + at), tl.load(y + at)]
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    r = tl.inline_asm_elementwise(ASM, "=f,f,f", pair, dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + at, r)


@triton.jit
def halve_bits(x, out, ASM: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    bits = tl.load(x + at).to(tl.int32, bitcast=True)
    r = tl.inline_asm_elementwise(ASM, "=h,r", [bits], dtype=tl.int16, is_pure=True, pack=1)
    tl.store(out + at, r)


@triton.jit
def bin_values(x, on, out, MASKED: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at)
    r = tl.histogram(value, BINS, mask=tl.load(on + at)) if MASKED else tl.histogram(value, BINS)
    tl.store(out + tl.arange(0, BINS), r)


@triton.jit
def add_atomically(x, total, N: tl.constexpr):
    value = tl.load(x + tl.program_id(0) * N + tl.arange(0, N))
    tl.atomic_add(total + tl.arange(0, N), value)
