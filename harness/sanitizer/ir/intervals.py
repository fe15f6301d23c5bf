"""Interval arithmetic over the integers of a kernel's graph: how large can a value be?

Invariant: the *exact* range of an operation contains every result that it would have if its type
had no end, whatever its operands are within their ranges. All numbers are read with a sign.

Example: a program number of 0..65,535 times a stride of 32,768..32,768 has the exact range
0..2,147,450,880, which int32 holds: the product cannot overflow. With a stride of 65,536 it is
0..4,294,901,760: it can. The range of the value that the program then computes is a matter of
policy: the audit clips the exact range to the type, because it reports the first overflow on a
path; a check that is left out of a compiled kernel needs the whole range of the type, because the
value wraps around.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph, ValueType
from harness.sanitizer.ir.operations import (
    BOUNDED_BY_EITHER,
    DIVISIONS,
    PROGRAM_QUERIES,
    VALUE_TAKING,
)

UNBOUNDED = 1 << 62
_MAX_PROGRAMS = (1 << 31) - 1  # along an axis of a grid
_AXES = {"x": 0, "y": 1, "z": 2}


class IntegerRange(NamedTuple):
    low: int
    high: int
    reasons: frozenset[str] = frozenset()  # causes of its width, for a report

    def join(self, other: IntegerRange) -> IntegerRange:
        return IntegerRange(
            min(self.low, other.low), max(self.high, other.high), self.reasons | other.reasons
        )

    def limit_high(self, high: int) -> IntegerRange:
        """Apply an upper bound from elsewhere: the reasons for the old bound are void then."""
        if high >= self.high:
            return self
        return IntegerRange(min(self.low, high) if not self.reasons else min(0, high), high)

    def limit_low(self, low: int) -> IntegerRange:
        return IntegerRange(max(self.low, min(low, self.high)), self.high, self.reasons)

    def contains(self, other: IntegerRange) -> bool:
        return self.low <= other.low and other.high <= self.high


RangeGetter = Callable[[IRValue], IntegerRange]
RangeBounds = tuple[int, int] | None


def make_exact_range(number: int) -> IntegerRange:
    return IntegerRange(number, number)


def join_ranges(ranges: list[IntegerRange]) -> IntegerRange:
    joined = ranges[0]
    for other in ranges[1:]:
        joined = joined.join(other)
    return joined


def get_type_range(value_type: ValueType, signed: bool = True) -> IntegerRange:
    return _get_element_range(value_type.element, signed)


@cache
def _get_element_range(element: str, signed: bool) -> IntegerRange:
    value_type = ValueType(element)
    if not value_type.is_integer:
        return IntegerRange(-UNBOUNDED, UNBOUNDED)
    bits = value_type.bits
    if bits == 1:
        return IntegerRange(0, 1)
    if signed:
        return IntegerRange(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return IntegerRange(0, (1 << bits) - 1)


def read_axis(operation: IROperation) -> int:
    """Read the grid axis of a program number, which MLIR prints as `x` or as `0 : i32`."""
    text = operation.attributes.get("axis", "0").split(":")[0].strip()
    return _AXES[text] if text in _AXES else int(text)


def read_constant(operation: IROperation) -> IntegerRange | None:
    """Read a constant; None where it has one number a lane."""
    text = operation.attributes.get("value", "0").removeprefix("dense<").split(":")[0].strip("> ")
    if text in ("true", "false"):
        return make_exact_range(int(text == "true"))
    try:
        return make_exact_range(int(text, 0))
    except ValueError:
        return None


def compute_exact_range(
    operation: IROperation, get_range: RangeGetter, positive_divisors: bool = False
) -> IntegerRange | None:
    """Compute the exact range of an operation's result; None without a rule for it.

    `positive_divisors` assumes that the kernel divides by sizes: a divisor of -3..8 is read as
    1..8. Without it such a quotient has no range.
    """
    name, operands = operation.name, operation.operands
    if name == "arith.constant":
        return read_constant(operation)
    if name == "tt.make_range":
        return IntegerRange(operation.get_int("start"), operation.get_int("end") - 1)
    if name in ("arith.cmpi", "arith.cmpf"):
        return IntegerRange(0, 1)
    if name in ("tt.join", "tt.cat"):
        return join_ranges([get_range(operand) for operand in operands])
    if name == "arith.select":
        return get_range(operands[1]).join(get_range(operands[2]))
    if name in VALUE_TAKING:
        return _extend_range(operation, get_range(operands[0]))
    if name not in BINARY_TRANSFERS or len(operands) != 2:
        return None
    left, right = get_range(operands[0]), get_range(operands[1])
    if name in DIVISIONS and right.low <= 0:
        if right.high <= 0 or not positive_divisors:
            return None
        right = right._replace(low=1)
    bounds = BINARY_TRANSFERS[name](left, right)
    if bounds is None:
        return None
    low, high = bounds
    reasons = left.reasons | right.reasons
    if name in BOUNDED_BY_EITHER and not (left.reasons and right.reasons):
        reasons = frozenset()
        if name == "arith.minsi" and left.reasons and left.low < right.low:
            low = min(0, right.low)
    return IntegerRange(low, high, reasons)


def _extend_range(operation: IROperation, operand: IntegerRange) -> IntegerRange:
    """Apply a conversion: an int32 of -1 extended without its sign is 4,294,967,295."""
    if operation.name == "arith.extui" and operand.low < 0:
        whole = get_type_range(operation.operands[0].type, signed=False)
        return whole._replace(reasons=operand.reasons)
    if operation.name == "arith.extsi" and operation.operands[0].type.bits == 1:
        return IntegerRange(-1, 0)
    return operand


def _multiply_bounds(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    return _enclose_bounds(a, b, lambda x, y: x * y)


def _enclose_bounds(
    a: IntegerRange, b: IntegerRange, operator: Callable[[int, int], int]
) -> RangeBounds:
    """Apply an operator that is monotonic in each operand to the ends of both ranges."""
    corners = [operator(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def _divide_bounds(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    return _enclose_bounds(a, b, lambda x, y: x // y if x >= 0 else -(-x // y))  # towards zero


def _divide_up(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    return _enclose_bounds(a, b, lambda x, y: -(-x // y))


def _take_remainder(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    low = 0 if a.low >= 0 else -(b.high - 1)
    return low, min(max(a.high, 0), b.high - 1)


def _take_unsigned_remainder(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    return _take_remainder(a, b) if a.low >= 0 else (0, b.high - 1)


def _shift_left(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    if b.low < 0 or b.high > 64:
        return None
    return _multiply_bounds(a, IntegerRange(1 << b.low, 1 << b.high))


def _shift_right(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    return _enclose_bounds(a, b, lambda x, y: x >> y) if 0 <= b.low <= b.high <= 64 else None


def _bitwise_and(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    bounds = [operand.high for operand in (a, b) if operand.low >= 0]
    return (0, min(bounds)) if bounds else None


def _bitwise_or(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    if a.low < 0 or b.low < 0:
        return None
    return 0, (1 << max(a.high.bit_length(), b.high.bit_length())) - 1


def _take_minimum(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    return min(a.low, b.low), min(a.high, b.high)


def _take_unsigned_minimum(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    """Compute an unsigned minimum, in which a negative number is larger than all others."""
    if a.low >= 0 and b.low >= 0:
        return _take_minimum(a, b)
    return _bitwise_and(a, b)  # no more than the operand that cannot be negative


def _take_maximum(a: IntegerRange, b: IntegerRange) -> RangeBounds:
    return max(a.low, b.low), max(a.high, b.high)


Transfer = Callable[[IntegerRange, IntegerRange], RangeBounds]


def _for_non_negative(transfer: Transfer) -> Transfer:
    """Return the unsigned form of an operation, where it agrees with the signed one."""
    return lambda a, b: transfer(a, b) if a.low >= 0 and b.low >= 0 else None


BINARY_TRANSFERS: dict[str, Transfer] = {
    "arith.addi": lambda a, b: (a.low + b.low, a.high + b.high),
    "arith.subi": lambda a, b: (a.low - b.high, a.high - b.low),
    "arith.muli": _multiply_bounds,
    "arith.divsi": _divide_bounds,
    "arith.divui": _for_non_negative(_divide_bounds),
    "arith.ceildivsi": _divide_up,
    "arith.remsi": _take_remainder,
    "arith.remui": _take_unsigned_remainder,
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right,
    "arith.shrui": _for_non_negative(_shift_right),
    "arith.andi": _bitwise_and,
    "arith.ori": _bitwise_or,
    "arith.xori": _bitwise_or,
    "arith.minsi": _take_minimum,
    "arith.minui": _take_unsigned_minimum,
    "arith.maxsi": _take_maximum,
    "arith.maxui": _for_non_negative(_take_maximum),
}


class ValueRanges:
    """The ranges that hold for every launch of a kernel, from its graph alone.

    They follow from constants, positions in a block and the widths of types. A value that a loop
    or a branch passes on, or that memory or the caller gives, may be any number of its type.
    """

    def __init__(self, graph: KernelGraph) -> None:
        self._ranges: dict[IRValue, IntegerRange] = {}
        for operation in graph.walk():
            if len(operation.results) == 1 and operation.result.type.is_integer:
                exact, whole = self._compute_exact(operation), get_type_range(operation.result.type)
                fits = exact is not None and whole.contains(exact)
                self._ranges[operation.result] = exact if exact is not None and fits else whole

    def get_range(self, value: IRValue) -> IntegerRange:
        return self._ranges.get(value) or get_type_range(value.type)

    def is_overflow_free(self, operation: IROperation, signed: bool) -> bool:
        """Return whether the result is exact in every launch, read with or without a sign."""
        if not signed and any(self.get_range(operand).low < 0 for operand in operation.operands):
            return False
        exact = self._compute_exact(operation)
        return exact is not None and get_type_range(operation.result.type, signed).contains(exact)

    def _compute_exact(self, operation: IROperation) -> IntegerRange | None:
        if operation.name in PROGRAM_QUERIES:
            return IntegerRange(0, _MAX_PROGRAMS)
        return compute_exact_range(operation, self.get_range)
