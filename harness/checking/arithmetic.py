"""Floats that numpy does not have: bfloat16 and two 8-bit formats, rounded as on a GPU.

Values are held as Triton's interpreter holds them: bit patterns in unsigned integers. Arithmetic
widens to float32, where a sum or product of two bfloat16 is rounded once more at most, and narrows
to the nearest, ties to even. The 8-bit formats saturate, as the hardware's conversions do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

QUIET = {"over": "ignore", "invalid": "ignore", "divide": "ignore", "under": "ignore"}


def _fp8_values(exponent_bits: int, mantissa_bits: int, bias: int, infinities: bool) -> Array:
    """The value of each of the 256 codes."""
    values = np.empty(256, dtype=np.float32)
    top = (1 << exponent_bits) - 1
    for code in range(256):
        exponent = (code >> mantissa_bits) & top
        mantissa = code & ((1 << mantissa_bits) - 1)
        if exponent == top and infinities:
            value = float("nan") if mantissa else float("inf")
        elif code & 0x7F == 0x7F and not infinities:
            value = float("nan")
        elif exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        values[code] = -value if code & 0x80 else value
    return values


class Fp8:
    """One 8-bit format, by tables: 256 codes are few."""

    def __init__(self, exponent_bits: int, mantissa_bits: int, bias: int, infinities: bool) -> None:
        self.values = _fp8_values(exponent_bits, mantissa_bits, bias, infinities)
        finite = self.values[:128][np.isfinite(self.values[:128])].astype(np.float64)
        self.largest = len(finite) - 1
        # Above the half way to the next code, the next code; the last one takes all that is above.
        self.halves = (finite[:-1] + finite[1:]) / 2

    def widen(self, codes: Array) -> Array:
        return self.values[codes]

    def narrow(self, values: Array) -> Array:
        size = np.abs(values).astype(np.float64)
        code = np.searchsorted(self.halves, size, side="left")
        at_half = self.halves[np.minimum(code, len(self.halves) - 1)] == size
        code = np.where(at_half & (code % 2 == 1), code + 1, code)
        code = np.where(np.isnan(values), 0x7F, code)
        return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def widen_bf16(bits: Array) -> Array:
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def narrow_bf16(values: Array) -> Array:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16).reshape(values.shape)


_FP8 = {"fp8e4nv": Fp8(4, 3, 7, infinities=False), "fp8e5": Fp8(5, 2, 15, infinities=True)}
PACKED = frozenset({"bf16", *_FP8})
KNOWN = frozenset({"fp16", "fp32", "fp64", *PACKED})


def widened(data: Array, name: str) -> Array:
    """Values one can compute with, of bits that one cannot."""
    if name == "bf16":
        return widen_bf16(data)
    if name in _FP8:
        return _FP8[name].widen(data)
    return data


def narrowed(values: Array, name: str) -> Array:
    """Values back in their format, rounded to nearest even."""
    with np.errstate(**QUIET):
        if name == "bf16":
            return narrow_bf16(values)
        if name in _FP8:
            return _FP8[name].narrow(values)
        return values.astype({"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}[name])


def smaller(x: Array, y: Array) -> Array:
    """The smaller number; a number rather than NaN, and -0.0 before 0.0."""
    return np.where((x == y) & np.signbit(x), x, np.fmin(x, y))


def larger(x: Array, y: Array) -> Array:
    return np.where((x == y) & ~np.signbit(x), x, np.fmax(x, y))


def to_integer(values: Array, target: Any) -> Array:
    """Toward zero; what does not fit goes to the nearest end, as on a GPU.

    NaN becomes zero, and in 64 bits the smallest number.
    """
    limits = np.iinfo(target)
    nothing = limits.min if limits.bits == 64 else 0
    with np.errstate(**QUIET):
        whole = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0))
        result = whole.astype(target)
        result = np.where(whole >= float(limits.max), limits.max, result)
        result = np.where(whole <= float(limits.min), limits.min, result)
        result = np.where(np.isnan(values), nothing, result)
    return result.astype(target)
