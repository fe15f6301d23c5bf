"""No result of an operation leaves the computed range, signed or unsigned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sanitizer.ir.graph import IROperation, IRValue, SourceLocation, ValueType
from harness.sanitizer.ir.intervals import IntegerRange, compute_exact_range

BITS = 16
TYPE = ValueType(f"i{BITS}")
WIDE = ValueType("i32")


def divide_towards_zero(a: int, b: int) -> int:
    """Divide, rounding towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def make_unsigned(operator: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """Apply an operator to both numbers as unsigned, and convert the result back to signed."""

    def apply(a: int, b: int) -> int:
        bits = operator(a % (1 << BITS), b % (1 << BITS)) % (1 << BITS)
        return bits - (1 << BITS) if bits >> (BITS - 1) else bits

    return apply


EXACT: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "divsi": divide_towards_zero,
    "divui": make_unsigned(lambda a, b: a // b),
    "ceildivsi": lambda a, b: -(-a // b),
    "remsi": lambda a, b: a - b * divide_towards_zero(a, b),
    "remui": make_unsigned(lambda a, b: a % b),
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "minsi": min,
    "minui": make_unsigned(min),
    "maxsi": max,
    "maxui": make_unsigned(max),
    "shrsi": lambda a, b: a >> b,
    "shrui": make_unsigned(lambda a, b: a >> b),
    "shli": lambda a, b: a << b,
}
NUMBERS = st.integers(-300, 300)
Operand = tuple[IntegerRange, int]


@st.composite
def operands(draw: st.DrawFn) -> Operand:
    low, number, high = sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
    return IntegerRange(low, high), number


def make_operation(name: str, count: int, result: ValueType = TYPE) -> IROperation:
    values = tuple(IRValue(number, TYPE) for number in range(count))
    return IROperation(f"arith.{name}", values, (IRValue(count, result),), {}, SourceLocation())


@pytest.mark.parametrize("name", EXACT)
@given(left=operands(), right=operands())
def test_a_result_lies_in_its_range(name: str, left: Operand, right: Operand) -> None:
    if name in ("divsi", "divui", "ceildivsi", "remsi", "remui") and not right[1]:
        return
    if name.startswith("sh") and not 0 <= right[0].low <= right[0].high < BITS:
        return
    computed = compute_exact_range(
        make_operation(name, 2), lambda value: (left, right)[value.number][0]
    )
    if computed is not None:
        assert computed.low <= EXACT[name](left[1], right[1]) <= computed.high


@given(operands())
def test_extended_without_its_sign_a_negative_number_is_large(operand: Operand) -> None:
    computed = compute_exact_range(make_operation("extui", 1, WIDE), lambda value: operand[0])
    assert computed is not None
    assert computed.low <= operand[1] % 2**BITS <= computed.high
    assert computed == operand[0] or operand[0].low < 0
