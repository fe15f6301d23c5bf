"""Rows of an access: lanes that lie side by side in memory, checked as one.

The address of a row's first lane and the number of its enabled lanes decide whether any lane is out
of bounds, so a tile takes one comparison a row, and a vector takes one. Both are computed by the
kernel's own operations, cloned with a side of one along the row, for the first lane and, since a
sum may overflow before it, for the last.

Invariant: a row's mask enables its first n lanes and no other. It is a condition that is constant
along the row, or a comparison of the lane's position with an end, or both. Example: `x + row[:,
None] * stride + lane[None, :]` with the mask `lane[None, :] < width` and 4 rows of 32 lanes has
first pointers `x + row * stride` (4 x 1) and n = min(width, 32). Other accesses are checked lane by
lane.

A row may wrap around at a remainder, `(start + lane) % width` (`row_remainders`). It counts from
its smallest lane to its largest one, and its mask is constant along it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.sanitizer.gpu.axis_contiguity import AxisContiguity
from harness.sanitizer.gpu.graph_builder import SGT, GraphBuilder
from harness.sanitizer.gpu.row_remainders import RowRemainders
from harness.sanitizer.gpu.row_shapes import (
    SpreadPath,
    format_row_constant,
    is_elementwise,
    is_row,
    map_axis_to_operand,
    parse_comparison,
    to_row_kind,
)
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.access_graph import find_mask
from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    ValueType,
)
from harness.sanitizer.ir.operations import ACCESS_OPERATIONS, SPREADING_OPERATIONS

_COUNT_ELEMENT = "i64"


@dataclass(frozen=True, slots=True)
class AccessRow:
    """An access's rows: each value has a side of one along them."""

    first_pointer: IRValue
    last_pointer: IRValue  # pointer of the last enabled lane, of a wrapped row the largest one
    lane_count: int | IRValue
    enabled: IRValue | None


@dataclass(slots=True)
class _CarriedRows:
    """First lanes that a loop carries beside the values that it carries."""

    operation: IROperation
    row_values: dict[tuple[IRValue, int], IRValue] = field(default_factory=dict)


class AccessRows:
    """A graph with the rows' operations added, and the rows by access."""

    def __init__(
        self,
        graph: KernelGraph,
        code: GraphBuilder,
        contiguity: AxisContiguity,
    ) -> None:
        self.by_access: dict[IROperation, AccessRow] = {}
        self.non_overflowing: set[IRValue] = set()  # sums up to a lane's number
        self._code, self._contiguity = code, contiguity
        self._carried_rows: dict[IRValue, _CarriedRows] = {}  # by a loop's carried value
        self._definitions = flow.map_defining_operations(graph)
        self._first_lanes: ChainMap[tuple[IRValue, int], IRValue] = ChainMap()
        self._remainders = RowRemainders(
            code, contiguity, self._definitions, self._list_carried_sources, self.non_overflowing
        )
        self.graph = replace(graph, body=self._rewrite_region(graph.body))

    # The walk

    def _rewrite_region(self, region: IRRegion) -> IRRegion:
        return IRRegion(tuple(map(self._rewrite_block, region.blocks)))

    def _rewrite_block(self, block: IRBlock) -> IRBlock:
        outer, self._first_lanes = self._first_lanes, self._first_lanes.new_child()
        with self._code.insert_into([]) as operations:
            for operation in block.operations:
                self._code.source = operation.source
                if operation.name == "scf.for":
                    operation = self._rewrite_loop(operation)
                elif operation.regions:
                    regions = tuple(map(self._rewrite_region, operation.regions))
                    operation = replace(operation, regions=regions)
                elif operation.name in ACCESS_OPERATIONS:
                    self._analyze_access(operation)
                operations.append(operation)
        self._first_lanes = outer
        return IRBlock(block.label, block.arguments, tuple(operations))

    def _rewrite_loop(self, operation: IROperation) -> IROperation:
        loop = _CarriedRows(operation)
        [body] = operation.regions
        initial = operation.operands[3:]
        inside = body.block.arguments[1:]
        self._carried_rows |= dict.fromkeys(inside, loop)
        outer, self._first_lanes = self._first_lanes, self._first_lanes.new_child()
        *before, last = body.block.operations
        body_block = self._rewrite_block(replace(body.block, operations=tuple(before)))
        yielded_lanes: list[IRValue] = []
        with self._code.insert_into([*body_block.operations]) as operations:
            for value, axis in _iter_growing_keys(loop.row_values):
                position = inside.index(value)
                yielded_lanes.append(self._get_first_lane(last.operands[position], axis))
            operations.append(replace(last, operands=(*last.operands, *yielded_lanes)))
        self._first_lanes = outer
        initial_lanes = tuple(
            self._get_first_lane(initial[inside.index(value)], axis)
            for value, axis in loop.row_values
        )
        results = tuple(self._code.new_value(value.type) for value in loop.row_values.values())
        arguments = (*body_block.arguments, *loop.row_values.values())
        whole = IRBlock(body_block.label, arguments, tuple(operations))
        return replace(
            operation,
            operands=(*operation.operands, *initial_lanes),
            results=(*operation.results, *results),
            regions=(IRRegion((whole,)),),
        )

    def _analyze_access(self, operation: IROperation) -> None:
        pointer, mask = operation.operands[0], find_mask(operation)
        axis = self._contiguity.find_contiguous_axis(pointer)
        if axis is None:
            self._analyze_wrapped_access(operation)
            return
        if not self._can_compute_row(pointer, axis):
            return
        if mask is not None and not self._can_split_mask(mask, axis):
            return
        code, side = self._code, pointer.type.shape[axis]
        on, count = self._split_mask(mask, axis) if mask is not None else (None, None)
        kind = to_row_kind(ValueType("i32", pointer.type.shape), axis)
        if count is None:
            lane = code.constant(side - 1, kind)
        else:
            wide = kind.with_element(_COUNT_ELEMENT)
            count = code.binary("minsi", count, code.constant(side, wide))
            some = code.compare(SGT, count, code.constant(0, wide))
            on = some if on is None else code.binary("andi", some, on)
            lane = code.binary("subi", count, code.constant(1, wide))
            lane = code.binary("maxsi", lane, code.constant(0, wide))
            lane = self._mark_non_overflowing(code.truncate(lane, "i32"))
        first = self._get_first_lane(pointer, axis)
        last = self._compute_last_lane(pointer, axis, lane)
        self.by_access[operation] = AccessRow(first, last, side if count is None else count, on)

    # Rows that wrap around

    def _analyze_wrapped_access(self, operation: IROperation) -> None:
        pointer, mask = operation.operands[0], find_mask(operation)
        axis = self._contiguity.find_wrapped_axis(pointer)
        if axis is None or not self._can_compute_row(pointer, axis):
            return
        if mask is not None and not self._contiguity.is_constant_along(mask, axis):
            return
        if mask is not None and not self._can_compute_row(mask, axis):
            return
        remainder = self._remainders.find_remainder(pointer, axis)
        if remainder is None:
            return
        code = self._code
        on = None if mask is None else self._get_first_lane(mask, axis)
        _, count = self._emit_remainder_ends(remainder.operation, remainder.axis)
        count = self._spread_along(count, remainder.spread)
        lane = self._mark_non_overflowing(code.binary("subi", count, code.constant(1, count.type)))
        first = self._get_first_lane(pointer, axis)
        last = self._compute_last_lane(pointer, axis, lane)
        self.by_access[operation] = AccessRow(first, last, count, on)

    def _emit_remainder_ends(self, operation: IROperation, axis: int) -> tuple[IRValue, IRValue]:
        dividend, divisor = (self._get_first_lane(operand, axis) for operand in operation.operands)
        return self._remainders.emit_ends(operation, axis, dividend, divisor)

    def _compute_largest_remainder(
        self, operation: IROperation, axis: int, lane: IRValue, spread: SpreadPath
    ) -> IRValue:
        """Compute the largest remainder of a row; it has the overflow of the last lane's."""
        code, (dividend, divisor) = self._code, operation.operands
        all_lanes = code.constant(operation.result.type.shape[axis] - 1, lane.type)
        rest = code.clone_operation(
            operation,
            (
                self._compute_last_lane(dividend, axis, all_lanes, spread),
                self._compute_last_lane(divisor, axis, lane, spread),
            ),
            lane.type.with_element(operation.result.type.element),
        )
        return code.binary("maxsi", self._add_lane(operation.result, axis, lane, spread), rest)

    # Masks

    def _can_split_mask(self, mask: IRValue, axis: int) -> bool:
        if self._contiguity.is_constant_along(mask, axis):
            return self._can_compute_row(mask, axis)
        definition = self._definitions.get(mask)
        if definition is None:
            return False
        if definition.name == "arith.andi":
            return all(self._can_split_mask(condition, axis) for condition in definition.operands)
        if definition.name in SPREADING_OPERATIONS:
            inner = map_axis_to_operand(definition, axis)
            return inner is not None and self._can_split_mask(definition.operands[0], inner)
        if definition.name != "arith.cmpi" or (compared := parse_comparison(definition)) is None:
            return False
        position, end, _ = compared
        return (
            self._contiguity.find_contiguous_axis(position) == axis
            and self._contiguity.is_constant_along(end, axis)
            and self._can_compute_row(position, axis)
            and self._can_compute_row(end, axis)
        )

    def _split_mask(self, mask: IRValue, axis: int) -> tuple[IRValue | None, IRValue | None]:
        """Split a mask: the condition for rows, and the number of enabled lanes; None for all."""
        if self._contiguity.is_constant_along(mask, axis):
            return self._get_first_lane(mask, axis), None
        definition, code = self._definitions[mask], self._code
        if definition.name == "arith.andi":
            left, right = (self._split_mask(condition, axis) for condition in definition.operands)
            both = [
                code.binary(name, first, second) if first and second else first or second
                for name, first, second in zip(("andi", "minsi"), left, right, strict=True)
            ]
            return both[0], both[1]
        if definition.name in SPREADING_OPERATIONS:
            inner = map_axis_to_operand(definition, axis)
            assert inner is not None
            parts = self._split_mask(definition.operands[0], inner)
            on, count = (
                row_value and self._spread_row(definition, axis, row_value) for row_value in parts
            )
            return on, count
        compared = parse_comparison(definition)
        assert compared is not None
        *ends, more = compared
        position, end = (code.to_int64(self._get_first_lane(value, axis)) for value in ends)
        count = code.binary("subi", end, position)
        if more:
            count = code.binary("addi", count, code.constant(more, count.type))
        return None, count

    # Values of one lane along an axis

    def _can_compute_row(
        self, value: IRValue, axis: int, visited: frozenset[IRValue] = frozenset()
    ) -> bool:
        if value in visited:
            return True
        if sources := self._list_carried_sources(value):
            return all(self._can_compute_row(source, axis, visited | {value}) for source in sources)
        definition = self._definitions.get(value)
        if definition is None:
            return False
        if is_row(value, axis) or definition.name in ("tt.make_range", "arith.constant"):
            return "[" not in definition.attributes.get("value", "")
        if definition.name in SPREADING_OPERATIONS:
            inner = map_axis_to_operand(definition, axis)
            return inner is None or self._can_compute_row(definition.operands[0], inner, visited)
        if not is_elementwise(definition):
            return False
        return all(
            self._can_compute_row(operand, axis, visited)
            for operand in definition.operands
            if operand.type.shape
        )

    def _list_carried_sources(self, value: IRValue) -> tuple[IRValue, ...]:
        """Return what a loop begins a carried value with, and what an iteration hands on."""
        if value not in self._carried_rows:
            return ()
        operation = self._carried_rows[value].operation
        body = operation.regions[0].block
        place = body.arguments.index(value) - 1
        return operation.operands[3 + place], body.operations[-1].operands[place]

    def _get_first_lane(self, value: IRValue, axis: int) -> IRValue:
        if (value, axis) not in self._first_lanes:
            self._first_lanes[value, axis] = self._compute_first_lane(value, axis)
        return self._first_lanes[value, axis]

    def _compute_first_lane(self, value: IRValue, axis: int) -> IRValue:
        code = self._code
        if is_row(value, axis):
            return value
        if value in self._carried_rows:
            more = self._carried_rows[value].row_values
            if (value, axis) not in more:
                more[value, axis] = code.new_value(to_row_kind(value.type, axis))
            return more[value, axis]
        definition, kind = self._definitions[value], to_row_kind(value.type, axis)
        if definition.name == "arith.remsi" and self._contiguity.is_wrapped_along(value, axis):
            return self._emit_remainder_ends(definition, axis)[0]
        if definition.name == "tt.make_range":
            return code.constant(definition.get_int("start"), kind)
        if definition.name == "arith.constant":
            return code.emit(definition.name, (), kind, value=format_row_constant(definition, kind))
        if definition.name in SPREADING_OPERATIONS:
            inner, below = map_axis_to_operand(definition, axis), definition.operands[0]
            return self._spread_row(
                definition, axis, below if inner is None else self._get_first_lane(below, inner)
            )
        operands = [
            self._get_first_lane(operand, axis) if operand.type.shape else operand
            for operand in definition.operands
        ]
        return code.clone_operation(definition, operands, kind)

    def _compute_last_lane(
        self, value: IRValue, axis: int, lane: IRValue, spread: SpreadPath = ()
    ) -> IRValue:
        """Compute the value at a lane; a sum along the axis may overflow before it.

        `spread`: the operations from the value's shape to the access's, each with its own axis.
        """
        code, definition = self._code, self._definitions.get(value)
        moves = not self._contiguity.is_constant_along(value, axis)
        if moves and definition is not None and definition.name == "arith.remsi":
            return self._compute_largest_remainder(definition, axis, lane, spread)
        if moves and definition is not None and is_elementwise(definition):
            operands = [
                self._compute_last_lane(operand, axis, lane, spread)
                if operand.type.shape
                else operand
                for operand in definition.operands
            ]
            kind = lane.type.with_element(value.type.element)
            return code.clone_operation(definition, operands, kind)
        if moves and definition is not None and definition.name in SPREADING_OPERATIONS:
            inner = map_axis_to_operand(definition, axis)
            if inner is not None:
                return self._compute_last_lane(
                    definition.operands[0], inner, lane, ((definition, axis), *spread)
                )
        if moves:
            return self._add_lane(value, axis, lane, spread)
        return self._spread_along(self._get_first_lane(value, axis), spread)

    def _spread_along(self, value: IRValue, spread: SpreadPath) -> IRValue:
        for operation, axis in spread:
            value = self._spread_row(operation, axis, value)
        return value

    def _add_lane(self, value: IRValue, axis: int, lane: IRValue, spread: SpreadPath) -> IRValue:
        code, first = self._code, self._spread_along(self._get_first_lane(value, axis), spread)
        if value.type.is_pointer:
            return code.emit("tt.addptr", (first, lane), first.type)
        bits = value.type.bits
        if bits > lane.type.bits:
            lane = code.extend(lane, value.type.element, signed=True)
        elif bits < lane.type.bits:
            lane = self._mark_non_overflowing(code.truncate(lane, value.type.element))
        return self._mark_non_overflowing(code.binary("addi", first, lane))

    def _mark_non_overflowing(self, value: IRValue) -> IRValue:
        self.non_overflowing.add(value)
        return value

    def _spread_row(self, definition: IROperation, axis: int, value: IRValue) -> IRValue:
        """Apply a shape operation, with a side of one along the axis."""
        kind = to_row_kind(definition.result.type, axis).with_element(value.type.element)
        if value.type == kind:
            return value
        if not value.type.shape:
            return self._code.splat(value, kind.shape)
        return self._code.clone_operation(definition, (value,), kind)


def _iter_growing_keys(
    row_values: dict[tuple[IRValue, int], IRValue],
) -> Iterator[tuple[IRValue, int]]:
    """Yield the keys, including those that are added during the iteration."""
    done = 0
    while done < len(row_values):
        yield list(row_values)[done]
        done += 1
