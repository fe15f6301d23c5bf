"""Ranges of integers, and what operations make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Range(NamedTuple):
    low: int
    high: int
    why: frozenset[str] = frozenset()  # the reasons that it is no narrower

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high), self.why | other.why)

    def at_most(self, high: int) -> Range:
        """With a bound from elsewhere, what was not known of it matters no more."""
        if high >= self.high:
            return self
        return Range(min(self.low, high) if not self.why else min(0, high), high)

    def at_least(self, low: int) -> Range:
        return Range(max(self.low, min(low, self.high)), self.high, self.why)


def exactly(number: int) -> Range:
    return Range(number, number)


def union(ranges: list[Range]) -> Range:
    found = ranges[0]
    for one in ranges[1:]:
        found = found.joined(one)
    return found


Bounds = tuple[int, int] | None


def _products(a: Range, b: Range) -> Bounds:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def _quotients(a: Range, b: Range) -> Bounds:
    if b.low <= 0 and b.high <= 0:
        return None
    least = max(1, b.low)
    corners = [_towards_zero(x, y) for x in (a.low, a.high) for y in (least, max(least, b.high))]
    return min(corners), max(corners)


def _towards_zero(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _remainders(a: Range, b: Range) -> Bounds:
    if b.high <= 0:
        return None
    return (0 if a.low >= 0 else -(b.high - 1)), min(max(a.high, 0), b.high - 1)


def _shifted(a: Range, b: Range) -> Bounds:
    if b.low < 0 or b.high > 64:
        return None
    return _products(a, Range(1 << b.low, 1 << b.high))


def _unshifted(a: Range, b: Range) -> Bounds:
    if b.low < 0 or b.high > 64:
        return None
    corners = [x >> y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def _both(a: Range, b: Range) -> Bounds:
    known = [one.high for one in (a, b) if one.low >= 0]
    return (0, min(known)) if known else None


def _either(a: Range, b: Range) -> Bounds:
    if a.low < 0 or b.low < 0:
        return None
    return 0, (1 << max(a.high.bit_length(), b.high.bit_length())) - 1


BINARY: dict[str, Callable[[Range, Range], Bounds]] = {
    "arith.addi": lambda a, b: (a.low + b.low, a.high + b.high),
    "arith.subi": lambda a, b: (a.low - b.high, a.high - b.low),
    "arith.muli": _products,
    "arith.divsi": _quotients,
    "arith.divui": _quotients,
    "arith.ceildivsi": _quotients,
    "arith.remsi": _remainders,
    "arith.remui": _remainders,
    "arith.shli": _shifted,
    "arith.shrsi": _unshifted,
    "arith.shrui": _unshifted,
    "arith.andi": _both,
    "arith.ori": _either,
    "arith.xori": _either,
    "arith.minsi": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "arith.minui": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "arith.maxsi": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
    "arith.maxui": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
}
