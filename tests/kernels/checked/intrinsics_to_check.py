"""Kernels of exactly specified functions: libdevice, PTX, histograms, bfloat16 sums."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def round_result(x, y, out, OP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    if OP == "add":
        r = libdevice.add_rn(a, b)
    elif OP == "mul":
        r = libdevice.mul_rn(a, b)
    elif OP == "div":
        r = libdevice.div_rn(a, b)
    elif OP == "fma":
        r = libdevice.fma_rn(a, b, a)
    elif OP == "sqrt":
        r = libdevice.sqrt_rn(a)
    else:
        r = libdevice.rcp_rn(a)
    tl.store(out + at, r)


@triton.jit
def count_bits(x, out, OP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    if OP == "popc":
        r = libdevice.popc(a)
    elif OP == "clz":
        r = libdevice.clz(a)
    elif OP == "ffs":
        r = libdevice.ffs(a)
    elif OP == "brev":
        r = libdevice.brev(a)
    elif OP == "isnan":
        r = libdevice.isnan(a).to(tl.int32)
    elif OP == "isinf":
        r = libdevice.isinf(a).to(tl.int32)
    else:
        r = libdevice.signbit(a).to(tl.int32)
    tl.store(out + at, r)


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
