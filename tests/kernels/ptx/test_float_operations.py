"""Each instruction on floats computes what PTX specifies: a table against numpy and torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from operands import RANDOM, TYPES, N, draw_operand, from_bf16, to_bf16
from ptx_kernels import apply_instruction

from harness.kernels.check.violations import UncheckableKernel

COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a != b) & (a == a) & (b == b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: ~(a == b),
    "ltu": lambda a, b: ~(a >= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}


@pytest.mark.parametrize("word", COMPARISONS)
def test_float_comparison(word: str) -> None:
    a, b = draw_operand("f32"), draw_operand("f32")
    a[10:20] = b[10:20]
    a[5:8], b[7:9] = np.nan, np.nan
    got = apply_instruction(
        f"setp.{word}.f32 {{d}}, {{0}}, {{1}};", [("f32", a), ("f32", b)], ("pred", bool)
    )
    assert np.array_equal(got, COMPARISONS[word](a, b))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "s16"])
@pytest.mark.parametrize("word", ["eq", "lt", "le", "gt", "ge"])
def test_integer_comparison(word: str, kind: str) -> None:
    a, b = draw_operand(kind), draw_operand(kind)
    got = apply_instruction(
        f"setp.{word}.{kind} {{d}}, {{0}}, {{1}};", [(kind, a), (kind, b)], ("pred", bool)
    )
    assert np.array_equal(got, COMPARISONS[word](a, b))


def exact_fma(a: Any, b: Any, c: Any) -> Any:
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


def narrow_values(values: Any) -> Any:
    return values.astype(np.float32)


def flush_denormals(values: Any) -> Any:
    return np.where(
        np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values
    )


FLOATS: list[tuple[str, str, int, Callable[..., Any]]] = [
    ("add.f32", "f32", 2, lambda a, b: a + b),
    (
        "add.rn.ftz.f32",
        "f32",
        2,
        lambda a, b: flush_denormals(flush_denormals(a) + flush_denormals(b)),
    ),
    ("sub.f32", "f32", 2, lambda a, b: a - b),
    ("mul.f32", "f32", 2, lambda a, b: a * b),
    (
        "mul.ftz.f32",
        "f32",
        2,
        lambda a, b: flush_denormals(flush_denormals(a) * flush_denormals(b)),
    ),
    ("add.sat.f32", "f32", 2, lambda a, b: np.clip(np.nan_to_num(a + b, nan=0.0), 0, 1) + 0),
    ("div.rn.f32", "f32", 2, lambda a, b: a / b),
    ("div.approx.f32", "f32", 2, lambda a, b: a / b),
    (
        "div.full.ftz.f32",
        "f32",
        2,
        lambda a, b: flush_denormals(flush_denormals(a) / flush_denormals(b)),
    ),
    ("rcp.approx.ftz.f32", "f32", 1, lambda a: flush_denormals(np.float32(1) / a)),
    ("sqrt.rn.f32", "f32", 1, np.sqrt),
    ("rsqrt.approx.f32", "f32", 1, lambda a: narrow_values(1 / np.sqrt(a.astype(np.float64)))),
    (
        "ex2.approx.ftz.f32",
        "f32",
        1,
        lambda a: flush_denormals(narrow_values(np.exp2(a.astype(np.float64)))),
    ),
    ("lg2.approx.f32", "f32", 1, lambda a: np.log2(a.astype(np.float64)).astype(np.float32)),
    ("sin.approx.f32", "f32", 1, lambda a: np.sin(a.astype(np.float64)).astype(np.float32)),
    ("cos.approx.f32", "f32", 1, lambda a: np.cos(a.astype(np.float64)).astype(np.float32)),
    ("tanh.approx.f32", "f32", 1, lambda a: np.tanh(a.astype(np.float64)).astype(np.float32)),
    ("min.f32", "f32", 2, np.fmin),
    ("max.ftz.f32", "f32", 2, lambda a, b: flush_denormals(np.fmax(a, b))),
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
]


@pytest.mark.parametrize(("name", "kind", "count", "reference"), FLOATS)
def test_float_instruction(name: str, kind: str, count: int, reference: Callable[..., Any]) -> None:
    values = [draw_operand(kind) for _ in range(count)]
    if kind == "f32" and not name.startswith("rsqrt"):
        values[0][6:9] = np.float32(1e-40)  # a subnormal number
        values[0][9] = np.nan
    operands = ", ".join(f"{{{place}}}" for place in range(count))
    got = apply_instruction(
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
    got = apply_instruction(
        f"{name}.{mode}.f32 {{d}}, {operands};",
        [(kind, value) for value in values],
        (kind, np.float32),
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
    values = [draw_operand("bf16x2") for _ in range(count)]
    operands = ", ".join(f"{{{place}}}" for place in range(count))
    got = apply_instruction(
        f"{name} {{d}}, {operands};",
        [("bf16x2", value) for value in values],
        ("bf16x2", np.uint32),
    )
    halves = [value.view(np.uint16) for value in values]
    with np.errstate(all="ignore"):
        expected = from_bf16(to_bf16(reference(*map(from_bf16, halves))))
    assert np.array_equal(from_bf16(got.view(np.uint16)), expected, equal_nan=True)


def make_saturation(low: int, high: int, rounding: Callable[..., Any]) -> Callable[..., Any]:
    def convert(values: Any) -> Any:
        numbers = [
            0 if math.isnan(value) else max(low, min(high, float(value))) for value in values
        ]
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
    ("cvt.rzi.s32.f32", "f32", "s32", make_saturation(-(2**31), 2**31 - 1, math.trunc)),
    ("cvt.rmi.s32.f32", "f32", "s32", make_saturation(-(2**31), 2**31 - 1, math.floor)),
    ("cvt.rpi.s32.f32", "f32", "s32", make_saturation(-(2**31), 2**31 - 1, math.ceil)),
    ("cvt.rni.s32.f32", "f32", "s32", make_saturation(-(2**31), 2**31 - 1, round)),
    ("cvt.rzi.u32.f32", "f32", "u32", make_saturation(0, 2**32 - 1, math.trunc)),
    ("cvt.rni.f32.f32", "f32", "f32", np.rint),
    ("cvt.rmi.f32.f32", "f32", "f32", np.floor),
    ("cvt.rzi.f32.f32", "f32", "f32", np.trunc),
    ("cvt.sat.f32.f32", "f32", "f32", lambda a: np.clip(np.nan_to_num(a, nan=0.0), 0, 1)),
]


@pytest.mark.parametrize(("name", "source", "target", "reference"), CONVERSIONS)
def test_conversion(name: str, source: str, target: str, reference: Callable[..., Any]) -> None:
    values = draw_operand(source)
    if source == "f32":
        values[9] = np.nan
        values[10:16] = [0.5, 1.5, 2.5, -0.5, 3e9, -3e9]
    got = apply_instruction(f"{name} {{d}}, {{0}};", [(source, values)], (target, TYPES[target]))
    with np.errstate(all="ignore"):
        expected = reference(values).astype(TYPES[target])
    if target == "bf16":
        got, expected = from_bf16(got), from_bf16(expected)
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("target", ["bf16x2", "f16x2"])
def test_two_floats_are_packed_with_the_first_one_above(target: str) -> None:
    a, b = draw_operand("f32"), draw_operand("f32")
    got = apply_instruction(
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
    a, b = draw_operand("f32"), draw_operand("f32")
    packed = apply_instruction(
        f"cvt.rn.satfinite.{name}.f32 {{d}}, {{0}}, {{1}};",
        [("f32", a), ("f32", b)],
        ("b16", np.uint16),
    )

    def encode(values: Any) -> Any:
        limited = torch.from_numpy(values).clamp(-largest, largest)
        return limited.to(dtype).view(torch.uint8).numpy().astype(np.uint16)

    assert np.array_equal(packed, encode(b) | encode(a) << 8)
    back = apply_instruction(
        f"cvt.rn.f16x2.{name} {{d}}, {{0}};", [("b16", packed)], ("b32", np.uint32)
    )
    low = torch.from_numpy((packed & 255).astype(np.uint8)).view(dtype).to(torch.float16)
    assert np.array_equal(back.view(np.float16)[::2], low.numpy())


FOUR_BITS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def test_four_bit_floats() -> None:
    a, b = draw_operand("f32"), draw_operand("f32")
    a[:9] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 1e9, -0.0]  # between two: the even one
    a[9], a[10] = np.nan, -0.3
    packed = apply_instruction(
        ".reg .b8 two; cvt.rn.satfinite.e2m1x2.f32 two, {0}, {1}; cvt.u32.u8 {d}, two;",
        [("f32", a), ("f32", b)],
        ("u32", np.uint32),
    )

    def encode(values: Any) -> Any:
        limited = np.minimum(np.abs(np.nan_to_num(values, nan=6.0)), 6.0)
        distances = np.abs(limited[:, None] - FOUR_BITS)
        nearest = distances == distances.min(1, keepdims=True)
        codes = np.where(nearest[:, ::2].any(1), nearest[:, ::2].argmax(1) * 2, nearest.argmax(1))
        return codes | (np.signbit(values) & ~np.isnan(values)) << 3

    assert np.array_equal(packed, encode(b) | encode(a) << 4)
    back = apply_instruction(
        ".reg .b8 two; cvt.u8.u32 two, {0}; cvt.rn.f16x2.e2m1x2 {d}, two;",
        [("u32", packed)],
        ("b32", np.uint32),
    )
    codes = np.stack([packed & 15, packed >> 4], 1)
    expected = FOUR_BITS[codes & 7] * np.where(codes & 8, -1, 1)
    assert np.array_equal(back.view(np.float16).reshape(-1, 2), expected)


def test_a_zero_in_decimals_is_zero_in_every_type() -> None:
    """FlashInfer's inline assembly starts its sums with `0.`."""
    a = draw_operand("f32")
    assert np.array_equal(
        apply_instruction("add.f32 {d}, {0}, 0.;", [("f32", a)], ("f32", np.float32)), a
    )
    with pytest.raises(UncheckableKernel, match=r"the decimal number 1\.5, whose bits depend on"):
        apply_instruction("add.f32 {d}, {0}, 1.5;", [("f32", a)], ("f32", np.float32))
