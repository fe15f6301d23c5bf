"""Ranges of a kernel's integers, from its parameters to its addresses.

Every integer of the graph gets the range of its true value, as if no type were too narrow. Where
that is more than its type holds, the operation wraps. Program numbers, lanes and what memory holds
are ranges; the host's numbers are ranges as well when something is to be proven for all launches,
and single numbers when one launch is looked for that wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.kernels.ir.flow import get_terminator
from harness.kernels.ir.graph import IROperation, IRRegion, IRValue
from harness.runs.audit.access_graph import VALUE_PRESERVING, AccessGraph
from harness.runs.audit.intervals import (
    BINARY_TRANSFERS,
    IntegerRange,
    join_ranges,
    make_exact_range,
)

UNBOUNDED = 1 << 62
_DIVISIONS = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")


def get_type_range(value: IRValue, signed: bool = True) -> tuple[int, int]:
    bits = max(1, value.type.bits)
    if bits == 1:
        return 0, 1
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


@dataclass(slots=True)
class LaunchInputs:
    """What a launch gives: a range for each parameter that is a number, programs, contents."""

    parameters: dict[int, IntegerRange] = field(default_factory=dict)
    programs: tuple[IntegerRange, IntegerRange, IntegerRange] = (make_exact_range(0),) * 3
    contents: dict[int, IntegerRange] = field(default_factory=dict)
    covers_all_launches: bool = False  # of all launches, and not one


class IntegerRangeAnalysis:
    """The ranges of one graph in one world; each is made when it is first asked for."""

    def __init__(self, access_graph: AccessGraph, inputs: LaunchInputs) -> None:
        self.access_graph, self.inputs = access_graph, inputs
        self._cache: dict[IRValue, IntegerRange] = {}

    def get(self, value: IRValue) -> IntegerRange:
        found = self._cache.get(value)
        if found is None:
            # Whoever comes back here on the way, round a loop, knows nothing yet.
            self._cache[value] = self._make_full_range(value, "a number that a loop carries")
            found = self._cache[value] = self._compute(value)
        return found

    def _compute(self, value: IRValue) -> IntegerRange:
        place = self.access_graph.parameter_indices.get(value)
        if place is not None:
            known = self.inputs.parameters.get(place)
            return known or self._make_full_range(
                value, f"what {value.name or 'an argument'} may be"
            )
        maker = self.access_graph.defining_operations.get(value)
        if maker is None:
            return self._compute_block_argument(value)
        if maker.name == "scf.for":
            carried = maker.regions[0].block.arguments[1:]
            number = maker.results.index(value)
            given = get_terminator(maker.regions[0]).operands[number]
            return self.get(maker.operands[3 + number]).join(
                self.get(given) if given is not carried[number] else self.get(carried[number])
            )
        if maker.name == "scf.if":
            number = maker.results.index(value)
            regions = [region for region in maker.regions if region.blocks]
            return join_ranges([self.get(get_terminator(one).operands[number]) for one in regions])
        if maker.name == "scf.while":
            number = maker.results.index(value)
            return self.get(get_terminator(maker.regions[0]).operands[1 + number])
        if maker.name in ("tt.reduce", "tt.scan"):
            return self._fold_reduction(maker, value)
        return self.compute_result_range(maker, value, self.get)

    def _compute_block_argument(self, value: IRValue) -> IntegerRange:
        """Of a block: what a loop counts or carries, what a fold is given."""
        owner = self.access_graph.block_owners.get(value)
        if owner is None:
            return self._make_full_range(value, "a jump")
        operation, region, number = owner
        if operation.name == "scf.for":
            lower, upper, step = (self.get(one) for one in operation.operands[:3])
            if not number:
                last = max(lower.low, upper.high - 1)
                return IntegerRange(lower.low, last, lower.reasons | upper.reasons)
            turns = max(0, -(-(upper.high - lower.low) // max(1, step.low)))
            init = self.get(operation.operands[2 + number])
            given = get_terminator(operation.regions[0]).operands[number - 1]
            return self._accumulate(value, init, given, turns, upper.reasons)
        if operation.name == "scf.while":
            before = operation.regions[0]
            if region:
                return self.get(get_terminator(before).operands[1 + number])
            found = self._find_counter_range(before, value, operation.operands[number])
            return found or self._make_full_range(value, "a loop without a count")
        if operation.name in ("tt.reduce", "tt.scan"):
            return self.get(operation.operands[number % len(operation.operands)])
        return self._make_full_range(value, "a jump")

    def _find_counter_range(
        self, before: IRRegion, value: IRValue, init: IRValue
    ) -> IntegerRange | None:
        """A counter that a `while` holds below something."""
        condition = self.access_graph.defining_operations.get(get_terminator(before).operands[0])
        if condition is None or condition.name != "arith.cmpi":
            return None
        left, right = condition.operands
        if left is not value or right in before.block.arguments:
            return None
        low, high = self.get(init), self.get(right)
        return IntegerRange(min(low.low, 0), max(low.high, high.high), high.reasons | low.reasons)

    def _accumulate(
        self,
        value: IRValue,
        init: IntegerRange,
        yielded: IRValue,
        trip_count: int,
        reasons: frozenset[str],
    ) -> IntegerRange:
        """What a loop carries: where it started, and what each turn adds."""
        added = self._find_increment(value, yielded)
        if added is None:
            if value in self.access_graph.find_cone(yielded):
                return self._make_full_range(value, "a number that a loop carries")
            return init.join(self.get(yielded))  # made anew each turn
        if not added.low and not added.high:
            return init
        return IntegerRange(
            init.low + trip_count * min(0, added.low),
            init.high + trip_count * max(0, added.high),
            init.reasons | added.reasons | reasons,
        )

    def _find_increment(self, value: IRValue, yielded: IRValue) -> IntegerRange | None:
        maker = self.access_graph.defining_operations.get(yielded)
        if yielded is value:
            return make_exact_range(0)
        if maker is None or value not in self.access_graph.find_cone(yielded):
            return None
        if maker.name in ("arith.addi", "arith.subi"):
            left, right = maker.operands
            inner, other = self._find_increment(value, left), right
            if inner is None and maker.name == "arith.addi":
                inner, other = self._find_increment(value, right), left
            if inner is None or value in self.access_graph.find_cone(other):
                return None
            step = self.get(other)
            if maker.name == "arith.subi":
                step = IntegerRange(-step.high, -step.low, step.reasons)
            return IntegerRange(
                inner.low + step.low, inner.high + step.high, inner.reasons | step.reasons
            )
        if maker.name == "arith.select":
            ways = [self._find_increment(value, one) for one in maker.operands[1:]]
        elif maker.name == "scf.if":
            place = maker.results.index(yielded)
            ways = [
                self._find_increment(value, get_terminator(region).operands[place])
                for region in maker.regions
                if region.blocks
            ]
        else:
            return None
        known = [one for one in ways if one is not None]
        return join_ranges(known) if len(known) == len(ways) else None

    def _fold_reduction(self, operation: IROperation, result: IRValue) -> IntegerRange:
        number = operation.results.index(result)
        inner = self.access_graph.defining_operations.get(
            get_terminator(operation.regions[0]).operands[number]
        )
        given = self.get(operation.operands[number])
        if inner is not None and inner.name == "arith.addi":
            many = max(1, operation.operands[number].type.lanes // max(1, result.type.lanes))
            if operation.name == "tt.scan":
                many = max(operation.operands[number].type.shape)
            return IntegerRange(
                min(given.low, given.low * many), max(given.high, given.high * many), given.reasons
            )
        if inner is not None and inner.name in ("arith.muli", "arith.xori"):
            return self._make_full_range(result, "a product of lanes")
        return given

    # One value

    def _make_full_range(self, value: IRValue, reason: str) -> IntegerRange:
        low, high = get_type_range(value) if value.type.is_integer else (-UNBOUNDED, UNBOUNDED)
        return IntegerRange(low, high, frozenset({reason}))

    def compute_result_range(
        self, operation: IROperation, result: IRValue, get_range: Callable[[IRValue], IntegerRange]
    ) -> IntegerRange:
        """The true range of a result, then what its type leaves of it."""
        true = self.compute_true_range(operation, result, get_range)
        low, high = get_type_range(result)
        if operation.name == "arith.extui" or not self.access_graph.address_integers.signed.get(
            result, True
        ):
            high = max(high, get_type_range(result, False)[1])
        if low <= true.low and true.high <= high:
            return true
        if true.low > high or true.high < low:
            return IntegerRange(low, high, true.reasons)
        return IntegerRange(max(low, true.low), min(high, true.high), true.reasons)

    def compute_true_range(
        self, operation: IROperation, result: IRValue, get_range: Callable[[IRValue], IntegerRange]
    ) -> IntegerRange:
        name = operation.name
        if name in VALUE_PRESERVING:
            return get_range(operation.operands[0])
        if name == "arith.constant":
            return read_constant(operation, result)
        if name == "tt.get_program_id":
            return self.inputs.programs[_read_axis(operation)]
        if name == "tt.get_num_programs":
            side = self.inputs.programs[_read_axis(operation)]
            return IntegerRange(side.high + 1, side.high + 1, side.reasons)
        if name == "tt.make_range":
            return IntegerRange(
                int(operation.attributes["start"].split()[0]),
                int(operation.attributes["end"].split()[0]) - 1,
            )
        if name in ("tt.load", "tt.atomic_rmw", "tt.atomic_cas"):
            return self._load_range(operation, result)
        if name in ("tt.gather", "tt.split", "arith.trunci"):
            return get_range(operation.operands[0])
        if name in ("tt.join", "tt.cat"):
            return join_ranges([get_range(one) for one in operation.operands])
        if name == "arith.select":
            return get_range(operation.operands[1]).join(get_range(operation.operands[2]))
        if name in ("arith.cmpi", "arith.cmpf"):
            return IntegerRange(0, 1)
        if name in BINARY_TRANSFERS and len(operation.operands) == 2:
            left, right = (get_range(one) for one in operation.operands)
            found = BINARY_TRANSFERS[name](left, right)
            if found is not None:
                why = left.reasons | right.reasons
                if name in (
                    "arith.remsi",
                    "arith.remui",
                    "arith.minsi",
                    "arith.minui",
                    "arith.andi",
                ):
                    why = frozenset() if not right.reasons or not left.reasons else why
                    if name == "arith.minsi" and (left.reasons and left.low < right.low):
                        found = (min(0, right.low), found[1])
                return IntegerRange(found[0], found[1], why)
        if result.type.bits == 1:
            return IntegerRange(0, 1)
        return self._make_full_range(result, name.partition(".")[2])

    def _load_range(self, operation: IROperation, result: IRValue) -> IntegerRange:
        """What memory holds."""
        if result.type.bits <= 1:
            return IntegerRange(0, 1)
        place = self.access_graph.pointer_origins.get(operation.operands[0])
        if place is not None and place in self.inputs.contents:
            known = self.inputs.contents[place]
            low, high = get_type_range(result)
            return IntegerRange(max(low, known.low), min(high, known.high), known.reasons)
        name = "memory"
        if place is not None:
            name = self.access_graph.graph.parameters[place].name or name
        return self._make_full_range(result, f"what {name} holds")


def _read_axis(operation: IROperation) -> int:
    text = operation.attributes.get("axis", "0").split(":")[0].strip()
    return {"x": 0, "y": 1, "z": 2}.get(text, int(text) if text.isdigit() else 0)


def read_constant(operation: IROperation, result: IRValue) -> IntegerRange:
    text = operation.attributes.get("value", "0").removeprefix("dense<").split(":")[0].strip("> ")
    if text in ("true", "false"):
        return make_exact_range(int(text == "true"))
    try:
        return make_exact_range(int(text, 0))
    except ValueError:
        low, high = get_type_range(result)
        return IntegerRange(low, high)


def find_division_by_zero(access_graph: AccessGraph) -> IROperation | None:
    """Where constants do not go together: such a kernel says nothing of one that is launched."""
    for operation in access_graph.defining_operations.values():
        if operation.name in _DIVISIONS:
            by = access_graph.find_root(operation.operands[1])
            maker = access_graph.defining_operations.get(by)
            if (
                maker is not None
                and maker.name == "arith.constant"
                and not read_constant(maker, by).high
            ):
                return operation
    return None
