"""Finds the integers that overflow on their way into an access that happens.

Ranges bound the result of an operation. The mask of an access and the branches around it bound it
further where the access happens. Invariant: a condition bounds the values that it compares and the
values that these are computed from, but never an operation whose own result it compares: after an
overflow that result is small again, or negative.

Example: `tl.store(x + row * stride, 1, mask=row < 1000)` with a stride of 4,096. `row` alone may be
1,048,575 and the product overflow; where the mask is true, `row` is at most 999 and the product at
most 4,091,904. With `mask=row * stride < 1000` there is no bound: a product of -4,096, from an
overflow, passes that mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.runs.audit.range_analysis import IntegerRangeAnalysis
from harness.sanitizer.ir.access_graph import Condition, find_mask
from harness.sanitizer.ir.graph import FileLine, IROperation, IRValue
from harness.sanitizer.ir.intervals import (
    UNBOUNDED,
    IntegerRange,
    RangeGetter,
    get_type_range,
    read_constant,
)
from harness.sanitizer.ir.operations import ACCESS_OPERATIONS, OVERFLOWING_OPERATIONS

_MAX_CONDITION_DEPTH = 30
_MAX_NARROWING_DEPTH = 5
_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_NEGATED = {
    "slt": "sge", "sle": "sgt", "sgt": "sle", "sge": "slt", "ult": "uge", "ule": "ugt",
    "ugt": "ule", "uge": "ult", "ne": "eq", "eq": "ne",
}  # fmt: skip
_MIRRORED = {"sgt": "slt", "sge": "sle", "ugt": "ult", "uge": "ule"}
ValueBounds = dict[IRValue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AddressOverflow:
    """An operation on the way into an access whose true result its type does not hold."""

    operation: IROperation
    range: IntegerRange
    access: IROperation

    @property
    def is_known(self) -> bool:
        return not self.range.reasons


class OverflowAnalysis:
    """The operations of one graph that overflow with one set of launch inputs."""

    def __init__(self, ranges: IntegerRangeAnalysis) -> None:
        self.ranges, self.access_graph = ranges, ranges.access_graph
        self._suspect: IRValue | None = None

    def find_overflows(
        self, line: FileLine | None = None, first_only: bool = True
    ) -> Iterator[AddressOverflow]:
        """Find, for each access, the operations that may overflow in lanes that access memory.

        `first_only` leaves out an operation if one of its operands has overflowed already.
        """
        for access, conditions in self.access_graph.accesses:
            suspects = [
                operation
                for operation in self.access_graph.address_operations[access]
                if (line is None or operation.source.line_key == line)
                and self._find_excess(operation, self.ranges.get)
            ]
            for operation in suspects:
                bounds = self.find_bounds(access, conditions, operation.result)
                if bounds is None:
                    if not self.ranges.inputs.covers_all_launches:
                        continue  # the access does not happen in this launch
                    bounds = {}  # impossible with these constants, possible with others
                get_range = RefinedRanges(self.ranges, bounds).get
                excess = self._find_excess(operation, get_range)
                if excess and not (first_only and self._is_consequence(operation, get_range)):
                    yield AddressOverflow(operation, excess, access)

    def _is_consequence(self, operation: IROperation, get_range: RangeGetter) -> bool:
        """Return whether an operand of the operation has overflowed already."""
        makers = (
            self.access_graph.defining_operations.get(self.access_graph.find_root(operand))
            for operand in operation.operands
        )
        return any(
            maker is not None
            and maker.name in OVERFLOWING_OPERATIONS
            and self._find_excess(maker, get_range) is not None
            for maker in makers
        )

    def _find_excess(self, operation: IROperation, get_range: RangeGetter) -> IntegerRange | None:
        """Compute the true range of the result if its type does not hold all of it."""
        result = operation.result
        if result.type.bits >= 64 or result.type.bits == 1:
            return None
        true = self.ranges.compute_true_range(operation, result, get_range)
        signed = self.access_graph.address_integers.signed.get(result, True)
        whole = get_type_range(result.type, signed)
        if not signed and operation.name == "arith.subi":
            whole = whole._replace(low=-UNBOUNDED)  # masked differences may be negative
        return None if whole.contains(true) else true

    def find_bounds(
        self,
        access: IROperation,
        conditions: tuple[Condition, ...],
        suspect: IRValue | None = None,
    ) -> ValueBounds | None:
        """Find the bounds that hold where the access happens; None where it cannot happen.

        Conditions on the suspect are left out, because it may have overflowed.
        """
        self._suspect = suspect
        bounds: ValueBounds = {}
        mask = find_mask(access)
        if mask is not None:
            conditions = (*conditions, (mask, True))
        possible = all(self._assume(value, is_true, bounds, 0) for value, is_true in conditions)
        return bounds if possible else None

    def _assume(self, value: IRValue, is_true: bool, bounds: ValueBounds, depth: int) -> bool:
        """Add the bounds that a condition gives; return whether it can hold at all."""
        value = self.access_graph.find_root(value)
        maker = self.access_graph.defining_operations.get(value)
        if maker is None or depth > _MAX_CONDITION_DEPTH:
            return True

        def assume_all(values: tuple[IRValue, ...], are_true: bool) -> bool:
            return all(self._assume(each, are_true, bounds, depth + 1) for each in values)

        match maker.name:
            case "arith.constant":
                known = read_constant(maker)
                return known is None or bool(known.high) == is_true
            case "arith.andi" if is_true:
                return assume_all(maker.operands, True)
            case "arith.ori" if not is_true:
                return assume_all(maker.operands, False)
            case "arith.xori":
                left, right = maker.operands
                known = self.ranges.get(right)
                if known.low == known.high:
                    return assume_all((left,), is_true != bool(known.low))
            case "arith.select" if is_true:
                condition, if_true, if_false = maker.operands
                other = self.ranges.get(if_false)
                if other.high == 0 and other.low == 0:
                    return assume_all((condition, if_true), True)
            case "arith.cmpi":
                return self._assume_comparison(maker, is_true, bounds)
        return True

    def _assume_comparison(
        self, comparison: IROperation, is_true: bool, bounds: ValueBounds
    ) -> bool:
        predicate = _read_predicate(comparison)
        if not is_true:
            predicate = _NEGATED.get(predicate, "")
        left, right = comparison.operands
        if self._suspect in self.access_graph.find_cone(left) | self.access_graph.find_cone(right):
            return True
        if predicate in _MIRRORED:
            left, right, predicate = right, left, _MIRRORED[predicate]
        low, high = self.ranges.get(left), self.ranges.get(right)
        if predicate in ("ult", "ule"):
            if high.low < 0:
                return True  # as an unsigned number the right side may be larger than all others
            # A number below one that is not negative, compared unsigned, is not negative either.
            low = low.limit_low(0) if low.high >= 0 else low._replace(low=0)
            self._narrow(left, 0, UNBOUNDED, bounds, 0)
        if predicate in ("slt", "sle", "ult", "ule"):
            less = 1 if predicate.endswith("lt") else 0
            if low.low > high.high - less and not low.reasons and not high.reasons:
                return False
            self._narrow(left, -UNBOUNDED, high.high - less, bounds, 0)
            self._narrow(right, low.low + less, UNBOUNDED, bounds, 0)
        elif predicate == "eq":
            self._narrow(left, high.low, high.high, bounds, 0)
            self._narrow(right, low.low, low.high, bounds, 0)
        return True

    def _narrow(self, value: IRValue, low: int, high: int, bounds: ValueBounds, depth: int) -> None:
        """Bound a value and what it was computed from.

        Example: if `row * 64 + lane` is at most 6,400 and `lane` at least 0, `row` is at most 100.
        """
        root = self.access_graph.find_root(value)
        if self.access_graph.is_zero_extension(value, self.ranges.get):
            # Zero extension makes -1 large, so a small number was not negative before.
            low = 0 if high <= get_type_range(root.type).high else -UNBOUNDED
        before = bounds.get(root, (-UNBOUNDED, UNBOUNDED))
        bounds[root] = (max(low, before[0]), min(high, before[1]))
        maker = self.access_graph.defining_operations.get(root)
        if maker is None or depth > _MAX_NARROWING_DEPTH or high >= UNBOUNDED:
            return
        if maker.name == "arith.addi":
            for part, other in (maker.operands, maker.operands[::-1]):
                self._narrow_high(part, high - self.ranges.get(other).low, bounds, depth)
        elif maker.name == "arith.muli":
            for part, other in (maker.operands, maker.operands[::-1]):
                factor = self.ranges.get(other)
                if factor.low > 0 and high >= 0:
                    self._narrow_high(part, high // factor.low, bounds, depth)
        elif maker.name == "arith.divsi":
            part, divisor = maker.operands
            factor = self.ranges.get(divisor)
            if factor.low > 0 and high >= 0:
                self._narrow_high(part, (high + 1) * factor.high - 1, bounds, depth)

    def _narrow_high(self, value: IRValue, high: int, bounds: ValueBounds, depth: int) -> None:
        self._narrow(value, -UNBOUNDED, high, bounds, depth + 1)


class RefinedRanges:
    """Ranges, refined by bounds."""

    def __init__(self, ranges: IntegerRangeAnalysis, bounds: ValueBounds) -> None:
        self._ranges, self._bounds = ranges, bounds
        self._cache: dict[IRValue, IntegerRange] = {}

    def get(self, value: IRValue) -> IntegerRange:
        if value not in self._cache:
            graph = self._ranges.access_graph
            refined = self._cache[value] = self._ranges.get(value)  # a loop may request it again
            maker = graph.defining_operations.get(value)
            plain = maker is not None and not maker.regions and maker.name not in ACCESS_OPERATIONS
            if maker is not None and plain and value.type.is_integer:
                refined = self._ranges.compute_result_range(maker, value, self.get)
            bound = self._bounds.get(graph.find_root(value))
            if bound is not None and (
                bound[0] >= 0 or not graph.is_zero_extension(value, self._ranges.get)
            ):
                refined = refined.limit_high(bound[1]).limit_low(bound[0])
            self._cache[value] = refined
        return self._cache[value]


def _read_predicate(operation: IROperation) -> str:
    text = operation.attributes.get("predicate", "")
    digits = text.split(":")[0].strip()
    return _PREDICATES[int(digits)] if digits.isdigit() else text
