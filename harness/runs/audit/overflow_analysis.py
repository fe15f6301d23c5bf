"""Which integers wrap on their way into an access that happens.

Ranges say what an operation may give; the mask of an access and the branches around it say what
must hold where it happens. A condition narrows what it speaks of, and what that was made from. It
says nothing of an operation whose result it compares: wrapped, that is small again, or below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.kernels.ir.graph import IROperation, IRValue
from harness.kernels.ir.operations import ACCESS_OPERATIONS, OVERFLOWING_OPERATIONS
from harness.runs.audit.access_graph import find_mask
from harness.runs.audit.intervals import IntegerRange
from harness.runs.audit.range_analysis import (
    UNBOUNDED,
    IntegerRangeAnalysis,
    get_type_range,
    read_constant,
)


@dataclass(frozen=True, slots=True)
class AddressOverflow:
    """An operation whose true result is more than its type holds, on its way into accesses."""

    operation: IROperation
    range: IntegerRange
    access: IROperation

    @property
    def is_known(self) -> bool:
        return not self.range.reasons


class OverflowAnalysis:
    """The operations of one graph that wrap in one world."""

    def __init__(self, ranges: IntegerRangeAnalysis) -> None:
        self.ranges, self.access_graph = ranges, ranges.access_graph
        self._suspect: IRValue | None = None

    def find_overflows(
        self, line_key: tuple[str, int] | None = None, first_only: bool = True
    ) -> Iterator[AddressOverflow]:
        """Of each access: the operations that leave their type in lanes that may be on.

        `own`: less those that only go on with what has wrapped before.
        """
        for access, conditions in self.access_graph.accesses:
            suspects = [
                one
                for one in self.access_graph.address_operations[access]
                if (line_key is None or (one.source.file, one.source.line) == line_key)
                and self._find_excess(one, self.ranges.get)
            ]
            for operation in suspects:
                bounds = self.find_bounds(access, conditions, operation.result)
                if bounds is None:
                    if not self.ranges.inputs.covers_all_launches:
                        continue  # it does not happen in this launch
                    bounds = {}  # with the constants at hand: that proves nothing of others
                refined = RefinedRanges(self.ranges, bounds).get
                left = self._find_excess(operation, refined)
                if left is not None and not (
                    first_only and self._is_consequence(operation, refined)
                ):
                    yield AddressOverflow(operation, left, access)

    def _is_consequence(
        self, operation: IROperation, get_range: Callable[[IRValue], IntegerRange]
    ) -> bool:
        """Whether it only goes on with what has wrapped before."""
        makers = (
            self.access_graph.defining_operations.get(self.access_graph.find_root(one))
            for one in operation.operands
        )
        return any(
            one is not None
            and one.name in OVERFLOWING_OPERATIONS
            and self._find_excess(one, get_range) is not None
            for one in makers
        )

    def _find_excess(
        self, operation: IROperation, get_range: Callable[[IRValue], IntegerRange]
    ) -> IntegerRange | None:
        result = operation.result
        true = self.ranges.compute_true_range(operation, result, get_range)
        signed = self.access_graph.address_integers.signed.get(result, True)
        low, high = get_type_range(result, signed)
        if not signed and operation.name == "arith.subi":
            low = -UNBOUNDED  # a difference that is masked is below zero now and then
        if result.type.bits >= 64 or result.type.bits == 1:
            return None
        return true if true.high > high or true.low < low else None

    def find_bounds(
        self,
        access: IROperation,
        conditions: tuple[tuple[IRValue, bool], ...],
        suspect: IRValue | None = None,
    ) -> dict[IRValue, tuple[int, int]] | None:
        """What holds wherever the access happens, whatever the suspect has become there."""
        self._suspect = suspect
        bounds: dict[IRValue, tuple[int, int]] = {}
        mask = find_mask(access)
        given = (*conditions, *(((mask, True),) if mask is not None else ()))
        for value, holds in given:
            if not self._assume(value, holds, bounds, 0):
                return None
        return bounds

    def _assume(
        self, value: IRValue, is_true: bool, bounds: dict[IRValue, tuple[int, int]], depth: int
    ) -> bool:
        """Narrow what a condition speaks of; whether it can hold at all."""
        if depth > 30:
            return True
        value = self.access_graph.find_root(value)
        maker = self.access_graph.defining_operations.get(value)
        if maker is None:
            return True
        if maker.name == "arith.constant":
            known = read_constant(maker, value)
            return not (known.low == known.high and bool(known.high) != is_true)
        if (maker.name == "arith.andi" and is_true) or (maker.name == "arith.ori" and not is_true):
            return all(self._assume(one, is_true, bounds, depth + 1) for one in maker.operands)
        if maker.name == "arith.xori":
            left, right = maker.operands
            known = self.ranges.get(right)
            if known.low == known.high:
                return self._assume(left, is_true != bool(known.low), bounds, depth + 1)
        if maker.name == "arith.select" and is_true:
            condition, true, false = maker.operands
            other = self.ranges.get(false)
            if other.high == 0 and other.low == 0:
                both = (condition, true)
                return all(self._assume(one, True, bounds, depth + 1) for one in both)
        if maker.name == "arith.cmpi":
            return self._assume_comparison(maker, is_true, bounds)
        return True

    def _assume_comparison(
        self, maker: IROperation, is_true: bool, bounds: dict[IRValue, tuple[int, int]]
    ) -> bool:
        word = _read_predicate(maker)
        if not is_true:
            word = _NEGATED_PREDICATES.get(word, "")
        left, right = maker.operands
        if self._suspect in self.access_graph.find_cone(left) | self.access_graph.find_cone(right):
            return True  # what has wrapped is compared, and may be small again
        word = word.replace("u", "s") if word[:1] == "u" else word
        if word in ("sgt", "sge"):
            left, right, word = right, left, {"sgt": "slt", "sge": "sle"}[word]
        low, high = self.ranges.get(left), self.ranges.get(right)
        if word in ("slt", "sle"):
            less = 1 if word == "slt" else 0
            if low.low > high.high - less and not low.reasons and not high.reasons:
                return False
            self._narrow(left, -UNBOUNDED, high.high - less, bounds, 0)
            self._narrow(right, low.low + less, UNBOUNDED, bounds, 0)
        elif word == "eq":
            self._narrow(left, high.low, high.high, bounds, 0)
            self._narrow(right, low.low, low.high, bounds, 0)
        return True

    def _narrow(
        self,
        value: IRValue,
        low: int,
        high: int,
        bounds: dict[IRValue, tuple[int, int]],
        depth: int,
    ) -> None:
        """Also of what it was made from: parts of a sum of no negatives are no larger than it."""
        value = self.access_graph.find_root(value)
        before = bounds.get(value, (-UNBOUNDED, UNBOUNDED))
        bounds[value] = (max(low, before[0]), min(high, before[1]))
        maker = self.access_graph.defining_operations.get(value)
        if maker is None or depth > 5 or high >= UNBOUNDED:
            return
        if maker.name == "arith.addi":
            left, right = maker.operands
            self._narrow(left, -UNBOUNDED, high - self.ranges.get(right).low, bounds, depth + 1)
            self._narrow(right, -UNBOUNDED, high - self.ranges.get(left).low, bounds, depth + 1)
        elif maker.name == "arith.muli":
            for one, other in (maker.operands, maker.operands[::-1]):
                factor = self.ranges.get(other)
                if factor.low > 0 and high >= 0:
                    self._narrow(one, -UNBOUNDED, high // factor.low, bounds, depth + 1)
        elif maker.name == "arith.divsi":
            one, other = maker.operands
            factor = self.ranges.get(other)
            if factor.low > 0 and high >= 0:
                self._narrow(one, -UNBOUNDED, (high + 1) * factor.high - 1, bounds, depth + 1)


class RefinedRanges:
    """Ranges where conditions hold."""

    def __init__(
        self, ranges: IntegerRangeAnalysis, bounds: dict[IRValue, tuple[int, int]]
    ) -> None:
        self._ranges, self._bounds = ranges, bounds
        self._cache: dict[IRValue, IntegerRange] = {}

    def get(self, value: IRValue) -> IntegerRange:
        if value not in self._cache:
            reading = self._ranges.access_graph
            found = self._cache[value] = self._ranges.get(value)  # also against circles of loops
            maker = reading.defining_operations.get(value)
            plain = maker is not None and not maker.regions and maker.name not in ACCESS_OPERATIONS
            if maker is not None and plain and value.type.is_integer:
                found = self._ranges.compute_result_range(maker, value, self.get)
            bound = self._bounds.get(reading.find_root(value))
            if bound is not None:
                found = found.limit_high(bound[1]).limit_low(bound[0])
            self._cache[value] = found
        return self._cache[value]


def _read_predicate(operation: IROperation) -> str:
    words = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
    text = operation.attributes.get("predicate", "")
    digits = text.split(":")[0].strip()
    return words[int(digits)] if digits.isdigit() else text


_NEGATED_PREDICATES = {
    "slt": "sge", "sle": "sgt", "sgt": "sle", "sge": "slt", "ult": "uge", "ule": "ugt",
    "ugt": "ule", "uge": "ult", "ne": "eq", "eq": "ne",
}  # fmt: skip
