"""Each instruction on floats computes what PTX specifies: a table against numpy and torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from operands import RANDOM, TYPES, N, draw_operand, from_bf16, to_bf16
from ptx_kernels import apply_instruction, apply_operation

from harness.sanitizer.violations.exceptions import UncheckableKernel

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
    found = apply_operation(f"setp.{word}.f32", [("f32", a), ("f32", b)], ("pred", bool))
    assert np.array_equal(found, COMPARISONS[word](a, b))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "s16"])
@pytest.mark.parametrize("word", ["eq", "lt", "le", "gt", "ge"])
def test_integer_comparison(word: str, kind: str) -> None:
    a, b = draw_operand(kind), draw_operand(kind)
    found = apply_operation(f"setp.{word}.{kind}", [(kind, a), (kind, b)], ("pred", bool))
    assert np.array_equal(found, COMPARISONS[word](a, b))


def exact_fma(a: Any, b: Any, c: Any) -> Any:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


def flush_denormals(values: Any) -> Any:
    return np.where(
        np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values
    )


# The number of operands of each operation, and its result.
OPERATIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, np.add),
    "sub": (2, np.subtract),
    "mul": (2, np.multiply),
    "div": (2, np.divide),
    "fma": (3, exact_fma),
    "rcp": (1, np.reciprocal),
    "sqrt": (1, np.sqrt),
    "rsqrt": (1, lambda a: 1 / np.sqrt(a)),
    "ex2": (1, np.exp2),
    "lg2": (1, np.log2),
    "sin": (1, np.sin),
    "cos": (1, np.cos),
    "tanh": (1, np.tanh),
    "min": (2, np.fmin),
    "max": (2, np.fmax),
    "neg": (1, np.negative),
    "abs": (1, np.abs),
    "copysign": (2, lambda sign, a: np.copysign(a, sign)),
}
APPROXIMATED = ("rsqrt", "ex2", "lg2", "sin", "cos", "tanh")  # here rounded once, from float64
INSTRUCTIONS = """
    add.f32 add.rn.ftz.f32 add.sat.f32 sub.f32 mul.f32 mul.ftz.f32 fma.rn.f32
    div.rn.f32 div.approx.f32 div.full.ftz.f32 rcp.approx.ftz.f32 sqrt.rn.f32 rsqrt.approx.f32
    ex2.approx.ftz.f32 lg2.approx.f32 sin.approx.f32 cos.approx.f32 tanh.approx.f32
    min.f32 max.ftz.f32 max.NaN.f32 neg.f32 abs.f32 copysign.f32
    add.f64 mul.f64 div.rn.f64 sqrt.rn.f64
    add.f16 mul.f16 fma.rn.f16 max.f16
""".split()


def compute_result(name: str, values: list[Any]) -> Any:
    """Compute what an instruction gives by its opcode, `.ftz`, `.sat` and `.NaN`."""
    opcode, *modifiers = name.split(".")
    dtype, function = values[0].dtype, OPERATIONS[opcode][1]
    if "ftz" in modifiers:
        values = [flush_denormals(value) for value in values]
    if opcode in APPROXIMATED:
        values = [value.astype(np.float64) for value in values]
    with np.errstate(all="ignore"):
        result = (np.maximum if "NaN" in modifiers else function)(*values).astype(dtype)
    if "ftz" in modifiers:
        result = flush_denormals(result)
    return np.clip(np.nan_to_num(result, nan=0.0), 0, 1) + 0 if "sat" in modifiers else result


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_float_instruction(name: str) -> None:
    kind = name.rpartition(".")[2]
    values = [draw_operand(kind) for _ in range(OPERATIONS[name.partition(".")[0]][0])]
    if kind == "f32" and not name.startswith("rsqrt"):
        values[0][6:9] = np.float32(1e-40)  # a subnormal number
        values[0][9] = np.nan
    found = apply_operation(name, [(kind, value) for value in values], (kind, TYPES[kind]))
    expected = compute_result(name, values)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(np.signbit(found)[found == 0], np.signbit(expected)[found == 0])


DIRECTED: dict[str, Callable[..., Fraction]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fma": lambda a, b, c: a * b + c,
    "div": operator.truediv,
}


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
@pytest.mark.parametrize("name", DIRECTED)
def test_rounding_in_a_direction(name: str, mode: str) -> None:
    values = [RANDOM.normal(size=N).astype(np.float32) for _ in range(OPERATIONS[name][0])]
    values[0][:8] *= np.float32(2.0**60)  # sums that float64 does not hold
    inputs = [("f32", value) for value in values]
    found = apply_operation(f"{name}.{mode}.f32", inputs, ("f32", np.float32))
    fractions = [[Fraction(float(number)) for number in value] for value in values]
    exact = [DIRECTED[name](*operands) for operands in zip(*fractions, strict=True)]
    assert found.tolist() == [float(round_directed(number, mode)) for number in exact]


@pytest.mark.parametrize("name", ["add", "mul", "sub", "fma.rn", "max", "neg"])
def test_instruction_on_pairs_of_bfloat16(name: str) -> None:
    values = [draw_operand("bf16x2") for _ in range(OPERATIONS[name.partition(".")[0]][0])]
    inputs = [("bf16x2", value) for value in values]
    found = apply_operation(f"{name}.bf16x2", inputs, ("bf16x2", np.uint32))
    exact = compute_result(name, [from_bf16(value.view(np.uint16)) for value in values])
    expected = from_bf16(to_bf16(exact))
    assert np.array_equal(from_bf16(found.view(np.uint16)), expected, equal_nan=True)


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
    found = apply_operation(name, [(source, values)], (target, TYPES[target]))
    with np.errstate(all="ignore"):
        expected = reference(values).astype(TYPES[target])
    if target == "bf16":
        found, expected = from_bf16(found), from_bf16(expected)
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("target", ["bf16x2", "f16x2"])
def test_two_floats_are_packed_with_the_first_one_above(target: str) -> None:
    a, b = draw_operand("f32"), draw_operand("f32")
    found = apply_operation(f"cvt.rn.{target}.f32", [("f32", a), ("f32", b)], ("b32", np.uint32))
    with np.errstate(all="ignore"):
        half = to_bf16 if target == "bf16x2" else lambda one: one.astype(np.float16).view(np.uint16)
        expected = half(b).astype(np.uint32) | half(a).astype(np.uint32) << 16
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [("e4m3x2", torch.float8_e4m3fn, 448.0), ("e5m2x2", torch.float8_e5m2, 57344.0)],
)
def test_eight_bit_floats(name: str, dtype: torch.dtype, largest: float) -> None:
    a, b = draw_operand("f32"), draw_operand("f32")
    inputs = [("f32", a), ("f32", b)]
    packed = apply_operation(f"cvt.rn.satfinite.{name}.f32", inputs, ("b16", np.uint16))

    def encode(values: Any) -> Any:
        limited = torch.from_numpy(values).clamp(-largest, largest)
        return limited.to(dtype).view(torch.uint8).numpy().astype(np.uint16)

    assert np.array_equal(packed, encode(b) | encode(a) << 8)
    back = apply_operation(f"cvt.rn.f16x2.{name}", [("b16", packed)], ("b32", np.uint32))
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
    inputs, result = [("f32", a)], ("f32", np.float32)
    assert np.array_equal(apply_instruction("add.f32 {d}, {0}, 0.;", inputs, result), a)
    with pytest.raises(UncheckableKernel, match=r"the decimal number 1\.5, whose bits depend on"):
        apply_instruction("add.f32 {d}, {0}, 1.5;", inputs, result)
