"""Ranges of integers, and what operations make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class IntegerRange(NamedTuple):
    low: int
    high: int
    reasons: frozenset[str] = frozenset()  # the reasons that it is no narrower

    def join(self, other: IntegerRange) -> IntegerRange:
        return IntegerRange(
            min(self.low, other.low), max(self.high, other.high), self.reasons | other.reasons
        )

    def limit_high(self, high: int) -> IntegerRange:
        """With a bound from elsewhere, what was not known of it matters no more."""
        if high >= self.high:
            return self
        return IntegerRange(min(self.low, high) if not self.reasons else min(0, high), high)

    def limit_low(self, low: int) -> IntegerRange:
        return IntegerRange(max(self.low, min(low, self.high)), self.high, self.reasons)


def make_exact_range(number: int) -> IntegerRange:
    return IntegerRange(number, number)


def join_ranges(ranges: list[IntegerRange]) -> IntegerRange:
    found = ranges[0]
    for one in ranges[1:]:
        found = found.join(one)
    return found


RangeBounds = tuple[int, int] | None


def _multiply(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def _divide(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    if b.low <= 0 and b.high <= 0:
        return None
    least = max(1, b.low)
    corners = [
        _divide_towards_zero(x, y) for x in (a.low, a.high) for y in (least, max(least, b.high))
    ]
    return min(corners), max(corners)


def _divide_towards_zero(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _take_remainder(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    if b.high <= 0:
        return None
    return (0 if a.low >= 0 else -(b.high - 1)), min(max(a.high, 0), b.high - 1)


def _shift_left(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    if b.low < 0 or b.high > 64:
        return None
    return _multiply(a, IntegerRange(1 << b.low, 1 << b.high))


def _shift_right(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    if b.low < 0 or b.high > 64:
        return None
    corners = [x >> y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def _bitwise_and(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    known = [one.high for one in (a, b) if one.low >= 0]
    return (0, min(known)) if known else None


def _bitwise_or(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    if a.low < 0 or b.low < 0:
        return None
    return 0, (1 << max(a.high.bit_length(), b.high.bit_length())) - 1


BINARY_TRANSFERS: dict[str, Callable[[IntegerRange, IntegerRange], RangeBounds]] = {
    "arith.addi": lambda a, b: (a.low + b.low, a.high + b.high),
    "arith.subi": lambda a, b: (a.low - b.high, a.high - b.low),
    "arith.muli": _multiply,
    "arith.divsi": _divide,
    "arith.divui": _divide,
    "arith.ceildivsi": _divide,
    "arith.remsi": _take_remainder,
    "arith.remui": _take_remainder,
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right,
    "arith.shrui": _shift_right,
    "arith.andi": _bitwise_and,
    "arith.ori": _bitwise_or,
    "arith.xori": _bitwise_or,
    "arith.minsi": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "arith.minui": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "arith.maxsi": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
    "arith.maxui": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
}
