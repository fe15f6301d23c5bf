"""The range of each integer of a kernel, from its parameters to its addresses.

Invariant: a range encloses the *true* value, the one that arithmetic without overflow gives. Where
that exceeds the type, the operation overflows; its range is then clipped to the type. Example: of
524,289 programs the last has the number 524,288. With a stride of 4,096 the true range of
`program * stride` is 0..2,147,483,648, one more than the largest int32: the smallest overflow.

Program numbers, lanes and the contents of memory are ranges. The host's numbers are ranges too in
a proof for all launches, and single numbers in the search for one launch that overflows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.sanitizer.ir.access_graph import AccessGraph
from harness.sanitizer.ir.flow import get_terminator
from harness.sanitizer.ir.graph import IROperation, IRRegion, IRValue
from harness.sanitizer.ir.intervals import (
    IntegerRange,
    RangeGetter,
    compute_exact_range,
    get_type_range,
    join_ranges,
    make_exact_range,
    read_axis,
    read_constant,
)
from harness.sanitizer.ir.operations import (
    ACCESS_OPERATIONS,
    DIVISIONS,
    FOLD_OPERATIONS,
    SUM_OPERATIONS,
)

_LOOP_CARRIED = "a number that a loop carries"


@dataclass(slots=True)
class LaunchInputs:
    """The inputs of a launch: ranges of its integer parameters, program numbers and contents."""

    parameters: dict[int, IntegerRange] = field(default_factory=dict)
    programs: tuple[IntegerRange, ...] = (make_exact_range(0),) * 3
    contents: dict[int, IntegerRange] = field(default_factory=dict)
    covers_all_launches: bool = False


class IntegerRangeAnalysis:
    """The ranges of one graph for one set of inputs, computed on demand.

    A loop requests the range of a value while that range is being computed. The inner request gets
    the whole range of the type, with the reason that a loop carries the number.
    """

    def __init__(self, access_graph: AccessGraph, inputs: LaunchInputs) -> None:
        self.access_graph, self.inputs = access_graph, inputs
        self._cache: dict[IRValue, IntegerRange] = {}

    def get(self, value: IRValue) -> IntegerRange:
        computed = self._cache.get(value)
        if computed is None:
            self._cache[value] = _make_full_range(value, _LOOP_CARRIED)
            computed = self._cache[value] = self._compute(value)
        return computed

    def _compute(self, value: IRValue) -> IntegerRange:
        index = self.access_graph.parameter_indices.get(value)
        if index is not None:
            known = self.inputs.parameters.get(index)
            return known or _make_full_range(value, f"what {value.name or 'an argument'} may be")
        maker = self.access_graph.defining_operations.get(value)
        if maker is None:
            return self._compute_block_argument(value)
        number = maker.results.index(value)
        if maker.name == "scf.for":
            yielded = get_terminator(maker.regions[0]).operands[number]
            return self.get(maker.operands[3 + number]).join(self.get(yielded))
        if maker.name == "scf.if":
            return join_ranges([self.get(end) for end in _iterate_branch_ends(maker, number)])
        if maker.name == "scf.while":
            return self.get(get_terminator(maker.regions[0]).operands[1 + number])
        if maker.name in FOLD_OPERATIONS:
            return self._compute_reduction(maker, number)
        return self.compute_result_range(maker, value, self.get)

    def _compute_block_argument(self, value: IRValue) -> IntegerRange:
        """Compute the range of a loop's counter or carried number, or of a reduction's operand."""
        owner = self.access_graph.block_owners.get(value)
        if owner is None:
            return _make_full_range(value, "a jump")
        operation, region, number = owner
        if operation.name == "scf.for":
            lower, upper, step = (self.get(operand) for operand in operation.operands[:3])
            if not number:
                last = max(lower.low, upper.high - 1)
                return IntegerRange(lower.low, last, lower.reasons | upper.reasons)
            iterations = max(0, -(-(upper.high - lower.low) // max(1, step.low)))
            initial = self.get(operation.operands[2 + number])
            yielded = get_terminator(operation.regions[0]).operands[number - 1]
            return self._accumulate(value, initial, yielded, iterations, upper.reasons)
        if operation.name == "scf.while":
            before = operation.regions[0]
            if region:
                return self.get(get_terminator(before).operands[1 + number])
            counter = self._find_counter_range(before, value, operation.operands[number])
            return counter or _make_full_range(value, "a loop without a count")
        if operation.name in FOLD_OPERATIONS:
            return self.get(operation.operands[number % len(operation.operands)])
        return _make_full_range(value, "a jump")

    def _find_counter_range(
        self, before: IRRegion, value: IRValue, initial: IRValue
    ) -> IntegerRange | None:
        """Find the range of a counter that the condition of a `while` keeps below a bound."""
        condition = self.access_graph.defining_operations.get(get_terminator(before).operands[0])
        if condition is None or condition.name != "arith.cmpi":
            return None
        left, right = condition.operands
        if left is not value or right in before.block.arguments:
            return None
        low, high = self.get(initial), self.get(right)
        return IntegerRange(min(low.low, 0), max(low.high, high.high), high.reasons | low.reasons)

    def _accumulate(
        self,
        value: IRValue,
        initial: IntegerRange,
        yielded: IRValue,
        iterations: int,
        reasons: frozenset[str],
    ) -> IntegerRange:
        """Compute the range of a number that a loop carries.

        Example: it starts at 0, each of 1,000 iterations adds 1..64, so it is 0..64,000.
        """
        added = self._find_increment(value, yielded)
        if added is None:
            if value in self.access_graph.find_cone(yielded):
                return _make_full_range(value, _LOOP_CARRIED)
            return initial.join(self.get(yielded))  # each iteration computes it from other values
        if not added.low and not added.high:
            return initial
        return IntegerRange(
            initial.low + iterations * min(0, added.low),
            initial.high + iterations * max(0, added.high),
            initial.reasons | added.reasons | reasons,
        )

    def _find_increment(self, value: IRValue, yielded: IRValue) -> IntegerRange | None:
        """Find how much one iteration adds to a carried number; None if it does not just add."""
        if yielded is value:
            return make_exact_range(0)
        maker = self.access_graph.defining_operations.get(yielded)
        if maker is None or value not in self.access_graph.find_cone(yielded):
            return None
        if maker.name in SUM_OPERATIONS:
            left, right = maker.operands
            inner, other = self._find_increment(value, left), right
            if inner is None and maker.name == "arith.addi":
                inner, other = self._find_increment(value, right), left
            if inner is None or value in self.access_graph.find_cone(other):
                return None
            low, high, reasons = self.get(other)
            if maker.name == "arith.subi":
                low, high = -high, -low
            return IntegerRange(inner.low + low, inner.high + high, inner.reasons | reasons)
        if maker.name == "arith.select":
            ends: Iterable[IRValue] = maker.operands[1:]
        elif maker.name == "scf.if":
            ends = _iterate_branch_ends(maker, maker.results.index(yielded))
        else:
            return None
        increments = [self._find_increment(value, end) for end in ends]
        known = [increment for increment in increments if increment is not None]
        return join_ranges(known) if len(known) == len(increments) else None

    def _compute_reduction(self, operation: IROperation, number: int) -> IntegerRange:
        """Compute the range of a reduction: a sum of 64 lanes of 0..3 is 0..192."""
        end = get_terminator(operation.regions[0]).operands[number]
        inner = self.access_graph.defining_operations.get(end)
        operand, result = operation.operands[number], operation.results[number]
        lane = self.get(operand)
        if inner is not None and inner.name == "arith.addi":
            lanes = max(1, operand.type.lanes // max(1, result.type.lanes))
            if operation.name == "tt.scan":
                lanes = max(operand.type.shape)
            return IntegerRange(
                min(lane.low, lane.low * lanes), max(lane.high, lane.high * lanes), lane.reasons
            )
        if inner is not None and inner.name in ("arith.muli", "arith.xori"):
            return _make_full_range(result, "a product of lanes")
        return lane

    def compute_result_range(
        self, operation: IROperation, result: IRValue, get_range: RangeGetter
    ) -> IntegerRange:
        """Compute the true range of a result, clipped to its type."""
        true = self.compute_true_range(operation, result, get_range)
        low, high, _ = get_type_range(result.type)
        signed = self.access_graph.address_integers.signed.get(result, True)
        if operation.name == "arith.extui" or not signed:
            high = max(high, get_type_range(result.type, False).high)
        if true.low > high or true.high < low:
            return IntegerRange(low, high, true.reasons)
        return IntegerRange(max(low, true.low), min(high, true.high), true.reasons)

    def compute_true_range(
        self, operation: IROperation, result: IRValue, get_range: RangeGetter
    ) -> IntegerRange:
        if operation.name == "tt.get_program_id":
            return self.inputs.programs[read_axis(operation)]
        if operation.name == "tt.get_num_programs":
            programs = self.inputs.programs[read_axis(operation)]
            return IntegerRange(programs.high + 1, programs.high + 1, programs.reasons)
        if operation.name in ACCESS_OPERATIONS:
            return self._compute_loaded_range(operation, result)
        if operation.name == "arith.constant":
            return read_constant(operation) or get_type_range(result.type)
        exact = compute_exact_range(operation, get_range, positive_divisors=True)
        if exact is not None:
            return exact
        if result.type.bits == 1:
            return IntegerRange(0, 1)
        return _make_full_range(result, operation.name.partition(".")[2])

    def _compute_loaded_range(self, operation: IROperation, result: IRValue) -> IntegerRange:
        low, high, _ = get_type_range(result.type)
        if result.type.bits <= 1:
            return IntegerRange(0, 1)
        origin = self.access_graph.pointer_origins.get(operation.operands[0])
        if origin is not None and origin in self.inputs.contents:
            known = self.inputs.contents[origin]
            return IntegerRange(max(low, known.low), min(high, known.high), known.reasons)
        name = self.access_graph.graph.parameters[origin].name if origin is not None else ""
        return _make_full_range(result, f"what {name or 'memory'} holds")


def _make_full_range(value: IRValue, reason: str) -> IntegerRange:
    return get_type_range(value.type)._replace(reasons=frozenset({reason}))


def _iterate_branch_ends(operation: IROperation, number: int) -> Iterable[IRValue]:
    """Iterate the values that the branches of an `if` give for its result of this number."""
    regions = (region for region in operation.regions if region.blocks)
    return (get_terminator(region).operands[number] for region in regions)


def find_division_by_zero(access_graph: AccessGraph) -> IROperation | None:
    """Find a division by a constant zero: no launch has such a set of constants."""
    for operation in access_graph.defining_operations.values():
        if operation.name in DIVISIONS:
            divisor = access_graph.find_root(operation.operands[1])
            maker = access_graph.defining_operations.get(divisor)
            if maker is not None and maker.name == "arith.constant":
                constant = read_constant(maker)
                if constant is not None and not constant.high:
                    return operation
    return None
