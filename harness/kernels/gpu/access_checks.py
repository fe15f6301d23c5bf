"""An access with its checks: bounds, wraps, fences.

What is outside of its tensor, or of a fence, is told and taken out; its report stands apart from
its mask, so that Triton can pipeline the access as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from harness.kernels.cpu.scratch_values import OperationSite
from harness.kernels.gpu.access_rows import AccessRows
from harness.kernels.gpu.access_rules import AccessRuleChecks
from harness.kernels.gpu.axis_contiguity import AxisContiguity
from harness.kernels.gpu.graph_builder import NE, GraphBuilder
from harness.kernels.gpu.overflow_tracking import OverflowState, OverflowTracker
from harness.kernels.gpu.pointer_bounds import PointerBounds, PointerBoundsTracker
from harness.kernels.gpu.report_emission import ReportEmitter, SiteReport
from harness.kernels.ir.graph import IROperation, IRValue, ValueType

OUT_OF_BOUNDS = -(1 << 31)  # the bit of a report's word that is no wrap's number
# What each access does, and which of its operands is the mask.
ACCESS_OPERATIONS = {
    "tt.load": ("read", 1),
    "tt.store": ("write", 2),
    "tt.atomic_rmw": ("update", 2),
    "tt.atomic_cas": ("update", None),
}
_VECTOR_BYTES = 16  # bytes that one instruction moves


class AccessChecks:
    def __init__(
        self,
        code: GraphBuilder,
        emitter: ReportEmitter,
        rows: AccessRows,
        contiguity: AxisContiguity,
        overflows: OverflowTracker,
        bounds_tracker: PointerBoundsTracker,
        rule_checks: AccessRuleChecks | None,
        pointer_numbers: dict[int, int],
        sites: list[OperationSite],
        check_bounds: bool,
        report_bounds: bool,
    ) -> None:
        """`places`: by parameter, the number of a pointer; `sites`: what is told of, in order.

        `tells`: what is outside is told as well as taken out.
        """
        self._code, self._emitter, self._rows, self._contiguity = code, emitter, rows, contiguity
        self._overflows, self._bounds_tracker, self._rule_checks = (
            overflows,
            bounds_tracker,
            rule_checks,
        )
        self._pointer_numbers, self._check_bounds, self._report_bounds = (
            pointer_numbers,
            check_bounds,
            report_bounds,
        )
        self._sites = sites
        self.unchecked_accesses: Counter[str] = Counter()

    def add_checks(self, operation: IROperation) -> IROperation:
        """The access as it is to be made, behind its checks."""
        code, pointer = self._code, operation.operands[0]
        verb, place = ACCESS_OPERATIONS[operation.name]
        mask = get_mask(operation)
        row = self._rows.by_access.get(operation)
        here, on = (pointer, mask) if row is None else (row.first_pointer, row.enabled)
        twin = self._overflows.merge_states(here)
        last = self._overflows.merge_states(row.last_pointer, excluding=here) if row else None
        reach = self._bounds_tracker.get_bounds(here)
        if reach is None:
            self.unchecked_accesses["nobody knows what its pointer points into"] += 1
        bounds = self._check_bounds and reach is not None
        if twin is None and last is None and not bounds:
            return self._add_rule_check(operation)
        address = far = code.emit("tt.ptr_to_int", (here,), here.type.with_element("i64"))
        if row is not None and last is not None:
            twin, far = self._merge_row_ends(twin, address, last, row.last_pointer)
        word, *operands = (None,) if twin is None else self._overflows.to_report_state(twin, on)
        bad = None
        if reach is not None and bounds:
            bad = self._bounds_tracker.emit_outside(
                reach, address, get_element_bytes(operation), row.lane_count if row else 1
            )
            bad = bad if on is None else code.binary("andi", on, bad)
        if reach is not None and bad is not None and self._report_bounds:
            kind = here.type.with_element("i32")
            outside = code.select(bad, code.constant(OUT_OF_BOUNDS, kind), code.constant(0, kind))
            if self._bounds_tracker.origins[here] is None:
                operands = self._select_report_operands(word, operands, reach, here.type.shape)
            word = outside if word is None else code.binary("ori", word, outside)
        if word is not None:
            origin = self._bounds_tracker.origins[here]
            own = None if origin is None else self._pointer_numbers[origin]
            self._sites.append(OperationSite(verb, pointer.type.pointee, operation.source, own))
            site = len(self._sites) - 1
            self._emitter.report(SiteReport(site, operation.source, word, far, tuple(operands)))
        if reach is not None and reach.from_argument and bad is not None and place is not None:
            operation = _replace_mask(operation, place, self._exclude_from_mask(pointer, mask, bad))
        return self._add_rule_check(operation)

    def _add_rule_check(self, operation: IROperation) -> IROperation:
        """Each lane by itself, where a launch has fences."""
        code, pointer = self._code, operation.operands[0]
        origin = self._bounds_tracker.origins[pointer]
        if self._rule_checks is None or origin is None:
            return operation
        verb, place = ACCESS_OPERATIONS[operation.name]
        mask = get_mask(operation)
        address = code.emit("tt.ptr_to_int", (pointer,), pointer.type.with_element("i64"))
        number = self._pointer_numbers[origin]
        word = self._rule_checks.emit_violation_word(
            verb, number, address, get_element_bytes(operation)
        )
        if mask is not None:
            word = code.select(mask, word, code.constant(0, word.type))
        self._sites.append(OperationSite(verb, pointer.type.pointee, operation.source, number))
        self._emitter.report(SiteReport(len(self._sites) - 1, operation.source, word, address))
        if place is None:
            return operation
        bad = code.compare(NE, word, code.constant(0, word.type))
        return _replace_mask(operation, place, self._exclude_from_mask(pointer, mask, bad))

    def _select_report_operands(
        self,
        word: IRValue | None,
        operands: Sequence[IRValue],
        bounds: PointerBounds,
        shape: tuple[int, ...],
    ) -> list[IRValue]:
        """What a report says besides: of a wrap its numbers, else what the pointer lies in."""
        lies = self._bounds_tracker.to_report_operands(bounds, shape)
        if word is None:
            return list(lies)
        wrapped = self._code.compare(NE, word, self._code.constant(0, word.type))
        both = zip(operands, lies, strict=True)
        return [self._code.select(wrapped, *one) for one in both]

    def _merge_row_ends(
        self,
        first_state: OverflowState | None,
        address: IRValue,
        last_state: OverflowState,
        last_pointer: IRValue,
    ) -> tuple[OverflowState, IRValue]:
        """Of a row: its first lane's twin, or its last one's, and where that lane is."""
        code = self._code
        there = code.emit("tt.ptr_to_int", (last_pointer,), address.type)
        found = code.select(self._overflows.emit_is_set(last_state), there, address)
        if first_state is None:
            return last_state, found
        found = code.select(self._overflows.emit_is_set(first_state), address, found)
        return self._overflows.merge_two(first_state, last_state), found

    def _exclude_from_mask(
        self, pointer: IRValue, mask: IRValue | None, outside: IRValue
    ) -> IRValue:
        """The mask without what is outside: a whole row, or a lane that was looked at alone."""
        code, shape = self._code, pointer.type.shape
        alone = outside.type.shape == shape
        good = code.binary(
            "xori",
            outside,
            code.constant(1, outside.type),
            **(self._make_constancy_hint(pointer) if alone else {}),
        )
        if not good.type.shape:
            good = code.splat(good, shape)
        elif not alone:
            good = code.emit("tt.broadcast", (good,), ValueType("i1", shape))
        return good if mask is None else code.binary("andi", mask, good)

    def _make_constancy_hint(self, pointer: IRValue) -> dict[str, str]:
        """That neighbours which one instruction moves are on or off together, by our mask.

        It is true while no lane is outside, which is why lanes that are off count as inside. When
        one is, the first of them speaks for all; and Triton would move each lane alone without.
        """
        axis = self._contiguity.find_contiguous_axis(pointer)
        if axis is None:
            return {}
        size = max(1, ValueType(pointer.type.pointee).bits // 8)
        lanes = [1] * len(pointer.type.shape)
        lanes[axis] = min(max(1, _VECTOR_BYTES // size), pointer.type.shape[axis])
        listed = ", ".join(map(str, lanes))
        return {"tt.constancy": f"dense<[{listed}]> : tensor<{len(lanes)}xi32>"}


def _replace_mask(operation: IROperation, mask_index: int, mask: IRValue) -> IROperation:
    operands = (*operation.operands[:mask_index], mask, *operation.operands[mask_index + 1 :])
    attributes = operation.attributes
    if "operandSegmentSizes" in attributes:
        others = len(operands) - 1 - mask_index
        attributes = {**attributes, "operandSegmentSizes": f"array<i32: {mask_index}, 1, {others}>"}
    return replace(operation, operands=operands, attributes=attributes)


def get_mask(operation: IROperation) -> IRValue | None:
    """The mask of an access, if it has one."""
    _, place = ACCESS_OPERATIONS[operation.name]
    if place is None or len(operation.operands) <= place:
        return None
    return operation.operands[place]


def get_element_bytes(operation: IROperation) -> int:
    kind = ValueType(operation.operands[0].type.pointee)
    return max(1, kind.bits // 8)
