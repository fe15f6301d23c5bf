"""An access with its checks in front: bounds, integer overflow, access rules.

Invariant: a lane that a check finds wrong is reported and masked off, so that the kernel touches
no foreign memory; all other lanes do the same as before. The report is emitted outside the masked
block; otherwise the pipeliner would hoist it into iterations that never run, and Triton could not
pipeline the access as before. Example: `tl.store(out + at, 1, mask=at < n)` with 8 lanes, n = 8
and 6 elements becomes: compute where at + 1 > 6; report that; store with `(at < n) & ~outside`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.sanitizer.gpu.access_rows import AccessRows
from harness.sanitizer.gpu.access_rules import AccessRuleChecks
from harness.sanitizer.gpu.accesses import get_verb, replace_mask
from harness.sanitizer.gpu.axis_contiguity import AxisContiguity
from harness.sanitizer.gpu.graph_builder import GraphBuilder
from harness.sanitizer.gpu.overflow_tracking import OverflowState, OverflowTracker
from harness.sanitizer.gpu.pointer_bounds import PointerBounds, PointerBoundsTracker
from harness.sanitizer.gpu.report_emission import ReportEmitter
from harness.sanitizer.ir.access_graph import find_mask, get_element_bytes
from harness.sanitizer.ir.graph import IROperation, IRValue, ValueType
from harness.sanitizer.ir.operations import MASK_POSITIONS
from harness.sanitizer.violations.kinds import ViolationKind, to_word_bit

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
        check_bounds: bool,
        report_bounds: bool,
    ) -> None:
        """`report_bounds`: whether a lane out of bounds is reported, or only masked off."""
        self._code, self._emitter, self._rows, self._contiguity = code, emitter, rows, contiguity
        self._overflows, self._bounds_tracker = overflows, bounds_tracker
        self._rule_checks = rule_checks
        self._check_bounds, self._report_bounds = check_bounds, report_bounds
        self.unchecked_accesses: Counter[str] = Counter()  # by the reason

    def add_checks(self, operation: IROperation) -> IROperation:
        """Emit an access's checks; return the access to emit behind them."""
        code, pointer, mask = self._code, operation.operands[0], find_mask(operation)
        row = self._rows.by_access.get(operation)
        checked, enabled = (pointer, mask) if row is None else (row.first_pointer, row.enabled)
        overflow = self._overflows.merge_states(checked)
        last = self._overflows.merge_states(row.last_pointer, excluding=checked) if row else None
        bounds = self._bounds_tracker.get_bounds(checked)
        if bounds is None:
            self.unchecked_accesses["nobody knows what its pointer points into"] += 1
        checks_bounds = self._check_bounds and bounds is not None
        if overflow is None and last is None and not checks_bounds:
            return self._add_rule_check(operation)
        address = reported_address = code.get_address(checked)
        if row is not None and last is not None:
            overflow, reported_address = self._merge_row_ends(
                overflow, address, last, row.last_pointer
            )
        word: IRValue | None = None
        operands: Sequence[IRValue] = ()
        if overflow is not None:
            word, *operands = self._overflows.to_report_state(overflow, enabled)
        outside = None
        if bounds is not None and checks_bounds:
            outside = self._bounds_tracker.emit_outside(
                bounds, address, get_element_bytes(pointer), row.lane_count if row else 1
            )
            outside = code.apply_mask(outside, enabled)
        if bounds is not None and outside is not None and self._report_bounds:
            bit = code.number_where(outside, to_word_bit(ViolationKind.OUT_OF_BOUNDS))
            if self._bounds_tracker.origins[checked] is None:
                operands = self._select_report_operands(word, operands, bounds, checked.type.shape)
            word = bit if word is None else code.binary("ori", word, bit)
        if word is not None:
            site = self._bounds_tracker.make_site(operation, checked)
            self._emitter.report(site, word, reported_address, operands)
        if bounds is not None and bounds.from_argument and outside is not None:
            operation = self._mask_off(operation, outside)
        return self._add_rule_check(operation)

    def _add_rule_check(self, operation: IROperation) -> IROperation:
        """Check each lane by itself against the access rules, in a launch that has some."""
        code, pointer, mask = self._code, operation.operands[0], find_mask(operation)
        number = self._bounds_tracker.get_pointer_number(pointer)
        if self._rule_checks is None or number is None:
            return operation
        address = code.get_address(pointer)
        word = self._rule_checks.emit_violation_word(
            get_verb(operation), number, address, get_element_bytes(pointer)
        )
        if mask is not None:
            word = code.select(mask, word, code.constant(0, word.type))
        self._emitter.report(self._bounds_tracker.make_site(operation), word, address)
        return self._mask_off(operation, code.is_nonzero(word))

    def _select_report_operands(
        self,
        word: IRValue | None,
        operands: Sequence[IRValue],
        bounds: PointerBounds,
        shape: tuple[int, ...],
    ) -> list[IRValue]:
        """Select a report's two numbers: an overflow's operands, else the bounds of the storage."""
        storage = self._bounds_tracker.to_report_operands(bounds, shape)
        if word is None:
            return list(storage)
        overflows = self._code.is_nonzero(word)
        pairs = zip(operands, storage, strict=True)
        return [self._code.select(overflows, *pair) for pair in pairs]

    def _merge_row_ends(
        self,
        first_state: OverflowState | None,
        address: IRValue,
        last_state: OverflowState,
        last_pointer: IRValue,
    ) -> tuple[OverflowState, IRValue]:
        """Return the overflow of a row's first lane, or else of the last one, and its address."""
        code = self._code
        last_overflows = code.is_nonzero(last_state.word)
        reported = code.select(last_overflows, code.get_address(last_pointer), address)
        if first_state is None:
            return last_state, reported
        reported = code.select(code.is_nonzero(first_state.word), address, reported)
        return self._overflows.merge_two(first_state, last_state), reported

    def _mask_off(self, operation: IROperation, wrong: IRValue) -> IROperation:
        """Mask off the wrong lanes of an access: whole rows, or single lanes."""
        if operation.name not in MASK_POSITIONS:
            return operation
        code, pointer, mask = self._code, operation.operands[0], find_mask(operation)
        shape = pointer.type.shape
        by_lane = wrong.type.shape == shape
        hint = self._make_constancy_hint(pointer) if by_lane else {}
        right = code.negate(wrong, **hint)
        if not right.type.shape:
            right = code.splat(right, shape)
        elif not by_lane:
            right = code.emit("tt.broadcast", (right,), ValueType("i1", shape))
        return replace_mask(operation, right if mask is None else code.binary("andi", mask, right))

    def _make_constancy_hint(self, pointer: IRValue) -> dict[str, str]:
        """Promise Triton that our mask is alike for the lanes that one instruction moves.

        Without it Triton would move each lane alone. It holds as long as no lane is out of bounds,
        which is why lanes that the kernel masks off count as inside; if one is, the first of the
        group decides for all.
        """
        axis = self._contiguity.find_contiguous_axis(pointer)
        if axis is None:
            return {}
        lanes = [1] * len(pointer.type.shape)
        lanes[axis] = min(_VECTOR_BYTES // get_element_bytes(pointer), pointer.type.shape[axis])
        listed = ", ".join(map(str, lanes))
        return {"tt.constancy": f"dense<[{listed}]> : tensor<{len(lanes)}xi32>"}
