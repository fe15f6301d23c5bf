"""No operation leaves the range that is said of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runs.audit.intervals import BINARY_TRANSFERS, IntegerRange


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EXACT: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": towards_zero,
    "arith.remsi": lambda a, b: a - b * towards_zero(a, b),
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.shrsi": lambda a, b: a >> b,
    "arith.shli": lambda a, b: a << b,
}
NUMBERS = st.integers(-300, 300)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[IntegerRange, int]:
    low, at, high = sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
    return IntegerRange(low, high), at


@pytest.mark.parametrize("name", EXACT)
@given(left=ranges(), right=ranges())
def test_a_result_lies_in_its_range(
    name: str, left: tuple[IntegerRange, int], right: tuple[IntegerRange, int]
) -> None:
    (a, x), (b, y) = left, right
    if name in ("arith.divsi", "arith.remsi") and b.low <= 0:
        return  # what divides is a size: no range below one is asked about
    if name in ("arith.shrsi", "arith.shli") and not 0 <= b.low <= b.high <= 64:
        return
    found = BINARY_TRANSFERS[name](a, b)
    if found is not None:
        assert found[0] <= EXACT[name](x, y) <= found[1]
