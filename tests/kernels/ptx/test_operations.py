"""Each instruction computes what PTX specifies: a table against numpy and torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from ptx_kernels import apply

RANDOM = np.random.default_rng(7)
N = 64
TYPES = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "b32": np.uint32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f32": np.float32, "f64": np.float64,
    "f16": np.float16, "bf16": np.uint16, "f16x2": np.uint32, "bf16x2": np.uint32,
    "pred": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16,
}  # fmt: skip


def draw(kind: str) -> Any:
    dtype = TYPES[kind]
    if kind == "pred":
        return RANDOM.integers(0, 2, N, dtype=np.uint8)
    if kind == "bf16":
        return to_bf16(draw("f32"))
    if kind in ("f16x2", "bf16x2"):
        half = kind[:-2]
        low, high = (draw(half).view(np.uint16).astype(np.uint32) for _ in range(2))
        return low | high << 16
    if np.issubdtype(dtype, np.floating):
        values = RANDOM.normal(size=N) * 2.0 ** RANDOM.integers(-8, 9, N)
        values[:6] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf]
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    values = RANDOM.integers(limits.min, limits.max, N, dtype=dtype, endpoint=True)
    values[:5] = [0, 1, limits.max, limits.min, limits.max - 1]
    values[5:20] = values[5:20] % np.array(40, dtype=dtype)
    return RANDOM.permutation(values)


def to_bf16(values: Any) -> Any:
    return (
        torch.from_numpy(values.astype(np.float32))
        .bfloat16()
        .view(torch.int16)
        .numpy()
        .view(np.uint16)
    )


def from_bf16(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def wide(values: Any) -> list[int]:
    return [int(one) for one in values]


def sign_extend(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def bit_field(value: int, start: int, length: int, bits: int, is_signed: bool) -> int:
    start, length = start & 255, length & 255
    if not length:
        return 0
    source = sign_extend(value, bits) if is_signed else value & ((1 << bits) - 1)
    field = source >> start & ((1 << length) - 1)
    return sign_extend(field, length) if is_signed and length < 200 else field


def find_first(value: int, bits: int, is_signed: bool) -> int:
    if is_signed and value < 0:
        value = ~value
    return value.bit_length() - 1 if value else -1


def permute(a: int, b: int, control: int) -> int:
    pool = (a | b << 32).to_bytes(8, "little")
    result = 0
    for place in range(4):
        choice = control >> 4 * place & 15
        byte = pool[choice & 7]
        byte = (255 if byte & 128 else 0) if choice & 8 else byte
        result |= byte << 8 * place
    return result


def divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def dot_bytes(a: int, b: int, count: int, wide_bits: int) -> int:
    return sum(
        sign_extend(a >> wide_bits * place, wide_bits) * sign_extend(b >> 8 * place, 8)
        for place in range(count)
    )


Reference = Callable[..., int]
INTEGERS: list[tuple[str, tuple[str, ...], str, Reference]] = [
    ("add.s32", ("s32", "s32"), "s32", lambda a, b: a + b),
    ("add.u16", ("u16", "u16"), "u16", lambda a, b: a + b),
    ("add.s64", ("s64", "s64"), "s64", lambda a, b: a + b),
    ("add.sat.s32", ("s32", "s32"), "s32", lambda a, b: max(-(2**31), min(2**31 - 1, a + b))),
    ("sub.s32", ("s32", "s32"), "s32", lambda a, b: a - b),
    ("sub.s64", ("s64", "s64"), "s64", lambda a, b: a - b),
    ("mul.lo.s32", ("s32", "s32"), "s32", lambda a, b: a * b),
    ("mul.lo.s64", ("s64", "s64"), "s64", lambda a, b: a * b),
    ("mul.hi.s32", ("s32", "s32"), "s32", lambda a, b: a * b >> 32),
    ("mul.hi.u32", ("u32", "u32"), "u32", lambda a, b: a * b >> 32),
    ("mul.hi.u64", ("u64", "u64"), "u64", lambda a, b: a * b >> 64),
    ("mul.hi.s64", ("s64", "s64"), "s64", lambda a, b: a * b >> 64),
    ("mul.wide.s32", ("s32", "s32"), "s64", lambda a, b: a * b),
    ("mul.wide.u32", ("u32", "u32"), "u64", lambda a, b: a * b),
    ("mul.wide.u16", ("u16", "u16"), "u32", lambda a, b: a * b),
    ("mul.wide.s16", ("s16", "s16"), "s32", lambda a, b: a * b),
    ("mad.lo.s32", ("s32", "s32", "s32"), "s32", lambda a, b, c: a * b + c),
    ("mad.hi.u32", ("u32", "u32", "u32"), "u32", lambda a, b, c: (a * b >> 32) + c),
    ("mad.wide.s32", ("s32", "s32", "s64"), "s64", lambda a, b, c: a * b + c),
    ("mad.wide.u32", ("u32", "u32", "u64"), "u64", lambda a, b, c: a * b + c),
    ("mul24.lo.u32", ("u32", "u32"), "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    ("mul24.lo.s32", ("s32", "s32"), "s32", lambda a, b: sign_extend(a, 24) * sign_extend(b, 24)),
    ("div.s32", ("s32", "s32"), "s32", divide),
    ("div.u32", ("u32", "u32"), "u32", lambda a, b: a // b),
    ("div.s64", ("s64", "s64"), "s64", divide),
    ("rem.s32", ("s32", "s32"), "s32", lambda a, b: a - divide(a, b) * b),
    ("rem.u64", ("u64", "u64"), "u64", lambda a, b: a % b),
    ("min.s32", ("s32", "s32"), "s32", min),
    ("max.u32", ("u32", "u32"), "u32", max),
    ("max.s64", ("s64", "s64"), "s64", max),
    ("min.u16", ("u16", "u16"), "u16", min),
    ("and.b32", ("b32", "b32"), "b32", lambda a, b: a & b),
    ("or.b64", ("b64", "b64"), "b64", lambda a, b: a | b),
    ("xor.b32", ("b32", "b32"), "b32", lambda a, b: a ^ b),
    ("not.b32", ("b32",), "b32", lambda a: ~a),
    ("neg.s32", ("s32",), "s32", lambda a: -a),
    ("abs.s32", ("s32",), "s32", abs),
    ("abs.s64", ("s64",), "s64", abs),
    ("shl.b32", ("b32", "u32"), "b32", lambda a, b: a << b if b < 32 else 0),
    ("shr.u32", ("u32", "u32"), "u32", lambda a, b: a >> b if b < 32 else 0),
    ("shr.s32", ("s32", "u32"), "s32", lambda a, b: a >> min(b, 31)),
    ("shl.b64", ("b64", "u32"), "b64", lambda a, b: a << b if b < 64 else 0),
    ("shr.s64", ("s64", "u32"), "s64", lambda a, b: a >> min(b, 63)),
    ("shr.u16", ("u16", "u32"), "u16", lambda a, b: a >> b if b < 16 else 0),
    ("shf.l.wrap.b32", ("b32", "b32", "u32"), "b32",
     lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
    ("shf.r.clamp.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("shf.r.wrap.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) >> (c & 31)),
    ("popc.b32", ("b32",), "u32", lambda a: a.bit_count()),
    ("popc.b64", ("b64",), "u32", lambda a: a.bit_count()),
    ("clz.b32", ("b32",), "u32", lambda a: 32 - a.bit_length()),
    ("clz.b64", ("b64",), "u32", lambda a: 64 - a.bit_length()),
    ("brev.b32", ("b32",), "b32", lambda a: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64", ("b64",), "b64", lambda a: int(f"{a:064b}"[::-1], 2)),
    ("bfind.u32", ("u32",), "u32", lambda a: find_first(a, 32, False)),
    ("bfind.s32", ("s32",), "u32", lambda a: find_first(a, 32, True)),
    ("bfind.u64", ("u64",), "u32", lambda a: find_first(a, 64, False)),
    ("bfind.shiftamt.u32", ("u32",), "u32",
     lambda a: 31 - find_first(a, 32, False) if a else -1),
    ("bfe.u32", ("u32", "u8", "u8"), "u32", lambda a, b, c: bit_field(a, b, c, 32, False)),
    ("bfe.s32", ("s32", "u8", "u8"), "s32", lambda a, b, c: bit_field(a, b, c, 32, True)),
    ("bfe.u64", ("u64", "u8", "u8"), "u64", lambda a, b, c: bit_field(a, b, c, 64, False)),
    ("bfi.b32", ("b32", "b32", "u8", "u8"), "b32",
     lambda a, b, c, d: b & ~(((1 << d) - 1) << c) | (a & ((1 << d) - 1)) << c),
    ("bfi.b64", ("b64", "b64", "u8", "u8"), "b64",
     lambda a, b, c, d: b & ~(((1 << d) - 1) << c) | (a & ((1 << d) - 1)) << c),
    ("prmt.b32", ("b32", "b32", "b32"), "b32", permute),
    ("sad.s32", ("s32", "s32", "s32"), "s32", lambda a, b, c: abs(a - b) + c),
    ("sad.u32", ("u32", "u32", "u32"), "u32", lambda a, b, c: abs(a - b) + c),
    ("dp4a.s32.s32", ("s32", "s32", "s32"), "s32",
     lambda a, b, c: c + dot_bytes(a, b, 4, 8)),
    ("dp4a.u32.u32", ("u32", "u32", "u32"), "u32",
     lambda a, b, c: c + sum((a >> 8 * i & 255) * (b >> 8 * i & 255) for i in range(4))),
    ("dp2a.lo.s32.s32", ("s32", "s32", "s32"), "s32",
     lambda a, b, c: c + dot_bytes(a, b, 2, 16)),
    ("dp2a.hi.u32.u32", ("u32", "u32", "u32"), "u32",
     lambda a, b, c: c + sum((a >> 16 * i & 65535) * (b >> 16 + 8 * i & 255) for i in range(2))),
    ("selp.b32", ("b32", "b32", "pred"), "b32", lambda a, b, c: a if c else b),
    ("cvt.s64.s32", ("s32",), "s64", lambda a: a),
    ("cvt.u64.u32", ("u32",), "u64", lambda a: a),
    ("cvt.u32.u64", ("u64",), "u32", lambda a: a),
    ("cvt.s32.s8", ("s8",), "s32", lambda a: a),
    ("cvt.u16.u8", ("u8",), "u16", lambda a: a),
    ("cvt.s16.s32", ("s32",), "s16", lambda a: a),
    ("cvt.sat.u8.s32", ("s32",), "u16", lambda a: max(0, min(255, a))),
    ("cvt.sat.s16.s32", ("s32",), "s16", lambda a: max(-32768, min(32767, a))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "result", "reference"), INTEGERS)
def test_integer_instruction(
    name: str, inputs: tuple[str, ...], result: str, reference: Reference
) -> None:
    values = [draw(kind) for kind in inputs]
    if name.startswith(("div", "rem")):
        values[1][values[1] == 0] = 3
    if name.startswith(("bfe.", "bfi.")):
        values[-1] %= 40
        values[-2] %= 40
    operands = ", ".join(f"{{{place}}}" for place in range(len(inputs)))
    got = apply(
        f"{name} {{d}}, {operands};",
        list(zip(inputs, values, strict=True)),
        (result, TYPES[result]),
    )
    bits = got.itemsize * 8
    expected = [reference(*one) & ((1 << bits) - 1) for one in zip(*map(wide, values), strict=True)]
    assert [one & ((1 << bits) - 1) for one in wide(got)] == expected


def test_lop3_computes_any_table() -> None:
    a, b, c = (draw("b32") for _ in range(3))
    got = apply(
        "lop3.b32 {d}, {0}, {1}, {2}, 0xE8;",
        [("b32", a), ("b32", b), ("b32", c)],
        ("b32", np.uint32),
    )
    assert np.array_equal(got, (a & b) | (a & c) | (b & c))


COMPARISONS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: (a != b) & (a == a) & (b == b),
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "equ": lambda a, b: ~((a < b) | (a > b)), "neu": lambda a, b: ~(a == b),
    "ltu": lambda a, b: ~(a >= b), "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b), "nan": lambda a, b: (a != a) | (b != b),
}  # fmt: skip


@pytest.mark.parametrize("word", COMPARISONS)
def test_float_comparison(word: str) -> None:
    a, b = draw("f32"), draw("f32")
    a[10:20] = b[10:20]
    a[5:8], b[7:9] = np.nan, np.nan
    got = apply(f"setp.{word}.f32 {{d}}, {{0}}, {{1}};", [("f32", a), ("f32", b)], ("pred", bool))
    assert np.array_equal(got, COMPARISONS[word](a, b))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "s16"])
@pytest.mark.parametrize("word", ["eq", "lt", "le", "gt", "ge"])
def test_integer_comparison(word: str, kind: str) -> None:
    a, b = draw(kind), draw(kind)
    got = apply(f"setp.{word}.{kind} {{d}}, {{0}}, {{1}};", [(kind, a), (kind, b)], ("pred", bool))
    assert np.array_equal(got, COMPARISONS[word](a, b))


def exact_fma(a: Any, b: Any, c: Any) -> Any:
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


def narrow(values: Any) -> Any:
    return values.astype(np.float32)


def flush(values: Any) -> Any:
    return np.where(
        np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values
    )


FLOATS: list[tuple[str, str, int, Callable[..., Any]]] = [
    ("add.f32", "f32", 2, lambda a, b: a + b),
    ("add.rn.ftz.f32", "f32", 2, lambda a, b: flush(flush(a) + flush(b))),
    ("sub.f32", "f32", 2, lambda a, b: a - b),
    ("mul.f32", "f32", 2, lambda a, b: a * b),
    ("mul.ftz.f32", "f32", 2, lambda a, b: flush(flush(a) * flush(b))),
    ("add.sat.f32", "f32", 2, lambda a, b: np.clip(np.nan_to_num(a + b, nan=0.0), 0, 1) + 0),
    ("div.rn.f32", "f32", 2, lambda a, b: a / b),
    ("div.approx.f32", "f32", 2, lambda a, b: a / b),
    ("div.full.ftz.f32", "f32", 2, lambda a, b: flush(a / b)),
    ("rcp.approx.ftz.f32", "f32", 1, lambda a: flush(np.float32(1) / a)),
    ("sqrt.rn.f32", "f32", 1, np.sqrt),
    ("rsqrt.approx.f32", "f32", 1, lambda a: narrow(1 / np.sqrt(a.astype(np.float64)))),
    ("ex2.approx.ftz.f32", "f32", 1, lambda a: flush(narrow(np.exp2(a.astype(np.float64))))),
    ("lg2.approx.f32", "f32", 1, lambda a: np.log2(a.astype(np.float64)).astype(np.float32)),
    ("sin.approx.f32", "f32", 1, lambda a: np.sin(a.astype(np.float64)).astype(np.float32)),
    ("cos.approx.f32", "f32", 1, lambda a: np.cos(a.astype(np.float64)).astype(np.float32)),
    ("tanh.approx.f32", "f32", 1, lambda a: np.tanh(a.astype(np.float64)).astype(np.float32)),
    ("min.f32", "f32", 2, np.fmin),
    ("max.ftz.f32", "f32", 2, lambda a, b: flush(np.fmax(a, b))),
    ("max.NaN.f32", "f32", 2, np.maximum),
    ("neg.f32", "f32", 1, lambda a: -a),
    ("abs.f32", "f32", 1, np.abs),
    ("copysign.f32", "f32", 2, lambda a, b: np.copysign(b, a)),
    ("add.f64", "f64", 2, lambda a, b: a + b),
    ("mul.f64", "f64", 2, lambda a, b: a * b),
    ("div.rn.f64", "f64", 2, lambda a, b: a / b),
    ("sqrt.rn.f64", "f64", 1, np.sqrt),
    ("add.f16", "f16", 2, lambda a, b: a + b),
    ("mul.f16", "f16", 2, lambda a, b: a * b),
    ("fma.rn.f16", "f16", 3, exact_fma),
    ("fma.rn.f32", "f32", 3, exact_fma),
    ("max.f16", "f16", 2, np.fmax),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "count", "reference"), FLOATS)
def test_float_instruction(name: str, kind: str, count: int, reference: Callable[..., Any]) -> None:
    values = [draw(kind) for _ in range(count)]
    if kind == "f32" and not name.startswith("rsqrt"):
        values[0][6:9] = np.float32(1e-40)  # a subnormal number
        values[0][9] = np.nan
    operands = ", ".join(f"{{{place}}}" for place in range(count))
    got = apply(
        f"{name} {{d}}, {operands};", [(kind, value) for value in values], (kind, TYPES[kind])
    )
    with np.errstate(all="ignore"):
        expected = reference(*values).astype(TYPES[kind])
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got)[got == 0], np.signbit(expected)[got == 0])


DIRECTED: list[tuple[str, str, Callable[..., Fraction]]] = [
    ("add", "f32", lambda a, b: a + b),
    ("sub", "f32", lambda a, b: a - b),
    ("mul", "f32", lambda a, b: a * b),
    ("fma", "f32", lambda a, b, c: a * b + c),
    ("div", "f32", lambda a, b: a / b),
]


def round_directed(exact: Fraction, mode: str) -> np.float32:
    """Round a fraction to the float next to it in a direction."""
    near = np.float32(float(exact))
    for _ in range(3):  # a conversion in two steps may be off by one place
        if Fraction(float(near)) > exact:
            near = np.nextafter(near, np.float32(-np.inf))
    below = near if Fraction(float(near)) <= exact else np.nextafter(near, np.float32(-np.inf))
    above = np.nextafter(below, np.float32(np.inf))
    above = below if Fraction(float(below)) == exact else above
    toward_zero = below if exact > 0 else above
    return {"rm": below, "rp": above, "rz": toward_zero}[mode]


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(("name", "kind", "reference"), DIRECTED)
def test_rounding_in_a_direction(
    name: str, kind: str, reference: Callable[..., Fraction], mode: str
) -> None:
    count = 3 if name == "fma" else 2
    values = [RANDOM.normal(size=N).astype(np.float32) for _ in range(count)]
    values[0][:8] *= np.float32(2.0**60)  # sums that float64 does not hold
    operands = ", ".join(f"{{{place}}}" for place in range(count))
    got = apply(
        f"{name}.{mode}.f32 {{d}}, {operands};", [(kind, one) for one in values], (kind, np.float32)
    )
    fractions = [[Fraction(float(one)) for one in value] for value in values]
    expected = [round_directed(reference(*one), mode) for one in zip(*fractions, strict=True)]
    assert got.tolist() == [float(one) for one in expected]


PAIRS = [
    ("add.bf16x2", 2, lambda a, b: a + b),
    ("mul.bf16x2", 2, lambda a, b: a * b),
    ("sub.bf16x2", 2, lambda a, b: a - b),
    ("fma.rn.bf16x2", 3, exact_fma),
    ("max.bf16x2", 2, np.fmax),
    ("neg.bf16x2", 1, lambda a: -a),
]


@pytest.mark.parametrize(("name", "count", "reference"), PAIRS)
def test_instruction_on_pairs_of_bfloat16(
    name: str, count: int, reference: Callable[..., Any]
) -> None:
    values = [draw("bf16x2") for _ in range(count)]
    operands = ", ".join(f"{{{place}}}" for place in range(count))
    got = apply(
        f"{name} {{d}}, {operands};",
        [("bf16x2", value) for value in values],
        ("bf16x2", np.uint32),
    )
    halves = [value.view(np.uint16) for value in values]
    with np.errstate(all="ignore"):
        expected = from_bf16(to_bf16(reference(*map(from_bf16, halves))))
    assert np.array_equal(from_bf16(got.view(np.uint16)), expected, equal_nan=True)


def saturating(low: int, high: int, rounding: Callable[..., Any]) -> Callable[..., Any]:
    def convert(values: Any) -> Any:
        numbers = [0 if math.isnan(one) else max(low, min(high, float(one))) for one in values]
        return np.array([int(rounding(one)) if math.isfinite(one) else one for one in numbers])

    return convert


CONVERSIONS: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("cvt.rn.f32.s32", "s32", "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f32.u32", "u32", "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f32.s64", "s64", "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f64.s64", "s64", "f64", lambda a: a.astype(np.float64)),
    ("cvt.f64.f32", "f32", "f64", lambda a: a.astype(np.float64)),
    ("cvt.rn.f32.f64", "f64", "f32", lambda a: a.astype(np.float32)),
    ("cvt.f32.f16", "f16", "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f16.f32", "f32", "f16", lambda a: a.astype(np.float16)),
    ("cvt.f32.bf16", "bf16", "f32", from_bf16),
    ("cvt.rn.bf16.f32", "f32", "bf16", to_bf16),
    ("cvt.rzi.s32.f32", "f32", "s32", saturating(-(2**31), 2**31 - 1, math.trunc)),
    ("cvt.rmi.s32.f32", "f32", "s32", saturating(-(2**31), 2**31 - 1, math.floor)),
    ("cvt.rpi.s32.f32", "f32", "s32", saturating(-(2**31), 2**31 - 1, math.ceil)),
    ("cvt.rni.s32.f32", "f32", "s32", saturating(-(2**31), 2**31 - 1, round)),
    ("cvt.rzi.u32.f32", "f32", "u32", saturating(0, 2**32 - 1, math.trunc)),
    ("cvt.rni.f32.f32", "f32", "f32", np.rint),
    ("cvt.rmi.f32.f32", "f32", "f32", np.floor),
    ("cvt.rzi.f32.f32", "f32", "f32", np.trunc),
    ("cvt.sat.f32.f32", "f32", "f32", lambda a: np.clip(np.nan_to_num(a, nan=0.0), 0, 1)),
]


@pytest.mark.parametrize(("name", "source", "target", "reference"), CONVERSIONS)
def test_conversion(name: str, source: str, target: str, reference: Callable[..., Any]) -> None:
    values = draw(source)
    if source == "f32":
        values[9] = np.nan
        values[10:16] = [0.5, 1.5, 2.5, -0.5, 3e9, -3e9]
    got = apply(f"{name} {{d}}, {{0}};", [(source, values)], (target, TYPES[target]))
    with np.errstate(all="ignore"):
        expected = reference(values).astype(TYPES[target])
    if target == "bf16":
        got, expected = from_bf16(got), from_bf16(expected)
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("target", ["bf16x2", "f16x2"])
def test_two_floats_are_packed_with_the_first_one_above(target: str) -> None:
    a, b = draw("f32"), draw("f32")
    got = apply(
        f"cvt.rn.{target}.f32 {{d}}, {{0}}, {{1}};", [("f32", a), ("f32", b)], ("b32", np.uint32)
    )
    with np.errstate(all="ignore"):
        half = to_bf16 if target == "bf16x2" else lambda one: one.astype(np.float16).view(np.uint16)
        expected = half(b).astype(np.uint32) | half(a).astype(np.uint32) << 16
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [("e4m3x2", torch.float8_e4m3fn, 448.0), ("e5m2x2", torch.float8_e5m2, 57344.0)],
)
def test_eight_bit_floats(name: str, dtype: torch.dtype, largest: float) -> None:
    a, b = draw("f32"), draw("f32")
    packed = apply(
        f"cvt.rn.satfinite.{name}.f32 {{d}}, {{0}}, {{1}};",
        [("f32", a), ("f32", b)],
        ("b16", np.uint16),
    )

    def encode(values: Any) -> Any:
        limited = torch.from_numpy(values).clamp(-largest, largest)
        return limited.to(dtype).view(torch.uint8).numpy().astype(np.uint16)

    assert np.array_equal(packed, encode(b) | encode(a) << 8)
    back = apply(f"cvt.rn.f16x2.{name} {{d}}, {{0}};", [("b16", packed)], ("b32", np.uint32))
    low = torch.from_numpy((packed & 255).astype(np.uint8)).view(dtype).to(torch.float16)
    assert np.array_equal(back.view(np.float16)[::2], low.numpy())
