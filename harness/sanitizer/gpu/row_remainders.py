"""Rows whose lanes are remainders: `(start + lane) % width`, from the smallest to the largest.

Invariant: the smallest and the largest of a row are both remainders of its lanes, so a check from
the one to the other reports no lane that is not accessed, also if `start + lane` overflows and goes
on from the smallest integer. Example: start = 80, width = 96 and 32 lanes are 80 to 95 and 0 to 15:
the smallest one is 0, and there are 96 elements to the largest. As in C the remainder of a negative
number is negative, too: start = -20 gives -20 to 11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness.sanitizer.gpu.axis_contiguity import AxisContiguity
from harness.sanitizer.gpu.graph_builder import EQ, SGE, SGT, SLT, GraphBuilder
from harness.sanitizer.gpu.row_shapes import SpreadPath, map_axis_to_operand
from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.ir.operations import SPREADING_OPERATIONS

_INT64 = "i64"


@dataclass(frozen=True, slots=True)
class RowRemainder:
    """A remainder along its axis, and the operations that spread it over a pointer."""

    operation: IROperation
    axis: int
    spread: SpreadPath


class RowRemainders:
    def __init__(
        self,
        code: GraphBuilder,
        contiguity: AxisContiguity,
        definitions: Mapping[IRValue, IROperation],
        find_carried_sources: Callable[[IRValue], tuple[IRValue, ...]],
        non_overflowing: set[IRValue],
    ) -> None:
        """`find_carried_sources`: what a loop's carried value may be; empty for other values.

        `non_overflowing`: gets the sums that cannot overflow.
        """
        self._code, self._contiguity, self._definitions = code, contiguity, definitions
        self._find_carried_sources = find_carried_sources
        self._non_overflowing = non_overflowing

    def find_remainder(self, pointer: IRValue, axis: int) -> RowRemainder | None:
        """Find the remainder that a pointer's lanes wrap around at, if it is the only one."""
        found = list(self._iterate(pointer, axis, (), frozenset()))
        results = {remainder.operation.result for remainder in found}
        return found[0] if len(results) == 1 else None

    def _iterate(
        self, value: IRValue, axis: int, spread: SpreadPath, visited: frozenset[IRValue]
    ) -> Iterator[RowRemainder]:
        """Yield the value's remainders; of one that a loop carries, the initial one's first."""
        if value in visited:
            return
        if sources := self._find_carried_sources(value):
            for source in sources:
                yield from self._iterate(source, axis, spread, visited | {value})
            return
        definition = self._definitions[value]
        if definition.name == "arith.remsi":
            yield RowRemainder(definition, axis, spread)
        elif definition.name in SPREADING_OPERATIONS:
            inner = map_axis_to_operand(definition, axis)
            assert inner is not None
            yield from self._iterate(
                definition.operands[0], inner, ((definition, axis), *spread), visited
            )
        else:
            for operand in definition.operands:
                if self._contiguity.is_wrapped_along(operand, axis):
                    yield from self._iterate(operand, axis, spread, visited)

    def emit_ends(
        self, operation: IROperation, axis: int, dividend: IRValue, divisor: IRValue
    ) -> tuple[IRValue, IRValue]:
        """Emit each row's smallest remainder, and how many elements there are to the largest.

        `dividend`, `divisor`: the operands of the row's first lane. The smallest remainder is a
        minimum of the first lane's remainder and another value, so that an overflow in the first
        lane's remainder is one in the smallest, too.
        """
        code, last_lane_number = self._code, operation.result.type.shape[axis] - 1
        kind = dividend.type
        wide = kind.with_element(_INT64)
        rest = code.clone_operation(operation, (dividend, divisor), kind)
        first, start, width = map(self._code.to_int64, (rest, dividend, divisor))
        limit = (1 << (kind.bits - 1)) - 1
        zero, one_lane, last_lane, most_int, last_start = (
            code.constant(number, wide)
            for number in (0, 1, last_lane_number, limit, limit - last_lane_number)
        )
        width = code.binary("maxsi", width, self._subtract(zero, width))
        largest_rest, least_rest = self._subtract(width, one_lane), self._subtract(one_lane, width)
        # Behind an overflow the lanes go on from the smallest integer.
        overflows = code.compare(SGT, start, last_start)
        last_up = code.select(overflows, self._subtract(most_int, start), last_lane)
        end, first_end = self._add(start, last_lane), self._add(first, last_up)
        # From below 0 the remainders rise to 0 and, still below 0, begin again at 1 - width.
        below = code.compare(SLT, start, zero)
        lanes_below = code.binary("minsi", last_lane, self._subtract(zero, start))
        restarts_below = code.compare(SGT, self._add(first, lanes_below), zero)
        largest_below = code.select(
            code.compare(SGE, end, zero),
            code.binary("minsi", end, largest_rest),
            code.select(restarts_below, zero, first_end),
        )
        restarts = code.compare(SGE, first_end, width)
        largest = code.select(below, largest_below, code.select(restarts, largest_rest, first_end))
        least = code.select(
            code.select(below, restarts_below, restarts),
            code.select(below, least_rest, zero),
            most_int,
        )
        smallest_rest = self._emit_smallest_rest(operation, divisor, width)
        overflown = self._add(smallest_rest, self._subtract(start, self._add(last_start, one_lane)))
        least_overflown = code.select(code.compare(SGT, overflown, zero), least_rest, smallest_rest)
        least = code.select(overflows, least_overflown, least)
        if kind != wide:
            least = code.truncate(least, kind.element)
            self._non_overflowing.add(least)
        smallest = code.binary("minsi", rest, least)
        distance = self._subtract(largest, self._code.to_int64(smallest))
        return smallest, self._add(distance, one_lane)

    def _emit_smallest_rest(
        self, operation: IROperation, divisor: IRValue, width: IRValue
    ) -> IRValue:
        """Emit the remainder of the smallest integer, whose quotient by -1 no integer holds."""
        code, kind = self._code, divisor.type
        next_smallest = code.constant(1 - (1 << (kind.bits - 1)), kind)
        rest = self._code.to_int64(code.clone_operation(operation, (next_smallest, divisor), kind))
        below = self._subtract(rest, code.constant(1, rest.type))
        ends = code.compare(EQ, self._add(below, width), code.constant(0, rest.type))
        return code.select(ends, code.constant(0, rest.type), below)

    def _add(self, left: IRValue, right: IRValue) -> IRValue:
        result = self._code.binary("addi", left, right)
        self._non_overflowing.add(result)
        return result

    def _subtract(self, left: IRValue, right: IRValue) -> IRValue:
        result = self._code.binary("subi", left, right)
        self._non_overflowing.add(result)
        return result
