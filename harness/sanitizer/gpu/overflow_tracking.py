"""Overflow states: beside each integer that leads to an address, the overflow that it contains.

A state holds, for each lane, the number of the operation that overflowed (0: none) and its two
operands. It is computed beside its integer, and an access whose enabled lane goes through the
address reports it. Invariant: only overflow that reaches an address is reported, with the first
operation that overflowed. Example: `at = row * stride + lane` has the product's state, or else the
sum's; `at & 0xFF` has none, as the low bits of an overflowed integer are right. The integers are
the same as on a CPU, by `flow.analyze_addresses`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from harness.sanitizer.gpu.graph_builder import EQ, NE, SGE, SLT, ULT, GraphBuilder
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.flow import AddressIntegers
from harness.sanitizer.ir.graph import IRBlock, IROperation, IRRegion, IRValue, ValueType
from harness.sanitizer.ir.intervals import ValueRanges
from harness.sanitizer.ir.operations import (
    FOLD_OPERATIONS,
    LANEWISE_OPERATIONS,
    OVERFLOW_SYMBOLS,
    SHAPE_OPERATIONS,
    SUM_OPERATIONS,
)


class OverflowState(NamedTuple):
    """For each lane: the overflow's number, from 1 on, or 0; and its operands."""

    word: IRValue
    left: IRValue
    right: IRValue


@dataclass(frozen=True, slots=True)
class SpreadOverflowState:
    """A state, and the shape operations that spread it over the lanes of a value.

    A row's state stays as small as the row until an access needs it for each lane.
    """

    state: OverflowState
    shape_operations: tuple[IROperation, ...] = ()

    @property
    def is_scalar(self) -> bool:
        return not self.state.word.type.shape


OverflowStates = tuple[SpreadOverflowState, ...]


class OverflowTracker:
    def __init__(
        self,
        code: GraphBuilder,
        addressing: AddressIntegers,
        ranges: ValueRanges,
        checked_line: IRValue | None = None,
    ) -> None:
        """`checked_line`: the only source line whose overflows count, if it is given."""
        self._code, self._addressing = code, addressing
        self._ranges, self._checked_line = ranges, checked_line
        self._states: dict[IRValue, OverflowStates] = {}
        self.overflowing_operations: list[IROperation] = []  # by number - 1

    def __contains__(self, value: IRValue) -> bool:
        return value in self._addressing

    def is_signed(self, value: IRValue) -> bool:
        return self._addressing.signed[value]

    def get_states(self, value: IRValue) -> OverflowStates:
        return self._states.get(value, ())

    def set_states(self, value: IRValue, states: OverflowStates) -> None:
        self._states[value] = states

    def new_state(self, shape: tuple[int, ...]) -> OverflowState:
        """Return a new state for control flow to carry."""
        return OverflowState(
            *(self._code.new_value(ValueType(kind, shape)) for kind in ("i32", "i64", "i64"))
        )

    def make_zero_state(self, shape: tuple[int, ...]) -> OverflowState:
        return OverflowState(
            *(self._code.constant(0, ValueType(kind, shape)) for kind in ("i32", "i64", "i64"))
        )

    def merge_states(
        self, value: IRValue, excluding: IRValue | None = None
    ) -> OverflowState | None:
        """Return the first overflow of each lane; None if nothing can overflow.

        `excluding`: a value whose states do not count.
        """
        known = self.get_states(excluding) if excluding is not None else ()
        return self._merge_first(
            [
                self._apply_shape_operations(state)
                for state in self.get_states(value)
                if state not in known
            ]
        )

    def merge_or_zero(self, value: IRValue) -> OverflowState:
        return self.merge_states(value) or self.make_zero_state(value.type.shape)

    def merge_carried(
        self, states: Iterable[SpreadOverflowState], shape: tuple[int, ...]
    ) -> OverflowState:
        """Return the first overflow of these states: one for all lanes, or one for each."""
        found = self._merge_first(
            [self._apply_shape_operations(state) if shape else state.state for state in states]
        )
        return self.make_zero_state(shape) if found is None else self._widen(found)

    def _merge_first(self, states: list[OverflowState]) -> OverflowState | None:
        merged: OverflowState | None = None
        for state in states:
            merged = state if merged is None else self.merge_two(merged, state)
        return merged

    def merge_two(self, first: OverflowState, second: OverflowState) -> OverflowState:
        code, known = self._code, self._code.is_nonzero(first.word)
        if [value.type for value in first] != [value.type for value in second]:
            first, second = self._widen(first), self._widen(second)
        return OverflowState(
            *(code.select(known, *both) for both in zip(first, second, strict=True))
        )

    def _widen(self, state: OverflowState) -> OverflowState:
        """Sign-extend the operands to 64 bits; the reader of a report cuts them to their width."""
        return OverflowState(state.word, *map(self._code.to_int64, (state.left, state.right)))

    def to_report_state(self, state: OverflowState, enabled: IRValue | None) -> OverflowState:
        """Return the state for a report, with that of the enabled lanes alone."""
        code, word = self._code, state.word
        if enabled is not None:
            word = code.select(enabled, word, code.constant(0, word.type))
        return self._widen(OverflowState(word, state.left, state.right))

    def _apply_shape_operations(self, spread_state: SpreadOverflowState) -> OverflowState:
        state = spread_state.state
        for operation in spread_state.shape_operations:
            kind = operation.result.type
            state = OverflowState(
                *(
                    self._code.clone_operation(
                        operation, (value,), kind.with_element(value.type.element)
                    )
                    for value in state
                )
            )
        return state

    def track_operation(self, operation: IROperation) -> None:
        """Emit the state of an operation's result, behind it."""
        if len(operation.results) == 1 and operation.result in self:
            self._states[operation.result] = self._compute_states(operation)

    def _compute_states(self, operation: IROperation) -> OverflowStates:
        code, name = self._code, operation.name
        if name in FOLD_OPERATIONS:
            return self._track_sum(operation)
        if name in SHAPE_OPERATIONS or name == "tt.unsplat":
            return tuple(
                SpreadOverflowState(state.state, (*state.shape_operations, operation))
                for state in self.get_states(operation.operands[0])
            )
        if name == "arith.select":
            condition, true, false = operation.operands
            if not self.get_states(true) and not self.get_states(false):
                return ()
            if condition.type.shape != true.type.shape:
                condition = code.splat(condition, true.type.shape)
            both = zip(
                self._widen(self.merge_or_zero(true)),
                self._widen(self.merge_or_zero(false)),
                strict=True,
            )
            return (
                SpreadOverflowState(
                    OverflowState(*(code.select(condition, *pair) for pair in both))
                ),
            )
        if not (name.startswith("arith.") or name in LANEWISE_OPERATIONS):
            return ()
        operand_states = dict.fromkeys(
            state for operand in operation.operands for state in self.get_states(operand)
        )
        if name == "arith.andi" and operand_states:
            return self._track_masked_number(operation, tuple(operand_states))
        if name in OVERFLOW_SYMBOLS and not self._ranges.is_overflow_free(
            operation, self.is_signed(operation.result)
        ):
            return (*operand_states, *self._track_own_overflow(operation))
        return tuple(operand_states)

    def _track_sum(self, operation: IROperation) -> OverflowStates:
        """Track a sum: its own overflow, if it differs in 64 bits, or that of an addend."""
        code, [addends], result = self._code, operation.operands, operation.result
        found: OverflowStates = ()
        if flow.is_integer_sum(operation):
            signed = self.is_signed(result)
            [wide] = self._emit_reduction(
                operation,
                (code.extend(addends, "i64", signed),),
                lambda left, right: (code.binary("addi", *left, *right),),
            )
            wrong = code.compare(NE, wide, code.extend(result, "i64", signed))
            found = (self._make_state(operation, wrong, wide, wide),)
        before = self.merge_states(addends)
        if before is None:
            return found
        folded = self._emit_reduction(
            operation,
            before,
            lambda left, right: self.merge_two(OverflowState(*left), OverflowState(*right)),
        )
        return (*found, SpreadOverflowState(OverflowState(*folded)))

    def _emit_reduction(
        self, operation: IROperation, operands: tuple[IRValue, ...], combine: Any
    ) -> list[IRValue]:
        """Emit the operation's reduction of other operands, with another combination of two."""
        code = self._code
        left, right = (
            [code.new_value(ValueType(value.type.element)) for value in operands] for _ in range(2)
        )
        with code.insert_into([]) as body:
            code.end_block(f"{operation.name}.return", combine(left, right))
        region = IRRegion((IRBlock("bb0", (*left, *right), tuple(body)),))
        results = [
            code.new_value(operation.result.type.with_element(value.type.element))
            for value in operands
        ]
        code.operations.append(
            replace(operation, operands=tuple(operands), results=tuple(results), regions=(region,))
        )
        return results

    def _track_masked_number(
        self, operation: IROperation, states: OverflowStates
    ) -> OverflowStates:
        """Track a bitwise and: a non-negative mask keeps low bits, which are right."""
        code = self._code
        for number, mask in (operation.operands, operation.operands[::-1]):
            if self._ranges.get_range(mask)[0] >= 0 and not self.get_states(mask):
                return ()
            if not self.get_states(mask):
                keeps_low_bits = code.compare(SGE, mask, code.constant(0, mask.type))
                word, *operands = self.merge_or_zero(number)
                none = code.constant(0, word.type)
                return (
                    SpreadOverflowState(
                        OverflowState(code.select(keeps_low_bits, none, word), *operands)
                    ),
                )
        return states

    def _track_own_overflow(self, operation: IROperation) -> OverflowStates:
        """Track overflow, except of unsigned sums in 64 bits: addresses are summed up so."""
        signed, result = self.is_signed(operation.result), operation.result
        if result.type.bits == 64 and not signed and operation.name in SUM_OPERATIONS:
            return ()
        left, right = operation.operands[0], operation.operands[-1]
        if operation.name == "arith.trunci" and left.type.bits < 64:
            left = right = self._code.extend(left, "i64", signed)
        return (self._make_state(operation, self._emit_overflows(operation, signed), left, right),)

    def _make_state(
        self, operation: IROperation, overflows: IRValue, left: IRValue, right: IRValue
    ) -> SpreadOverflowState:
        code = self._code
        if self._checked_line is not None:
            own = code.constant(operation.source.line, self._checked_line.type)
            here = code.splat(code.compare(EQ, self._checked_line, own), overflows.type.shape)
            overflows = code.binary("andi", overflows, here)
        word = code.number_where(overflows, 1 + self._get_overflow_number(operation))
        return SpreadOverflowState(OverflowState(word, left, right))

    def _get_overflow_number(self, operation: IROperation) -> int:
        """Return one number for all operations of a source location."""
        kind = operation.result.type.element
        for number, other in enumerate(self.overflowing_operations):
            if (other.name, other.source, other.result.type.element) == (
                operation.name,
                operation.source,
                kind,
            ):
                return number
        self.overflowing_operations.append(operation)
        return len(self.overflowing_operations) - 1

    def _emit_overflows(self, operation: IROperation, signed: bool) -> IRValue:
        """Emit whether the exact result does not fit."""
        code, result, first = self._code, operation.result, operation.operands[0]
        name = operation.name.removeprefix("arith.")
        if name == "trunci":
            return code.compare(NE, code.extend(result, first.type.element, signed), first)
        second = operation.operands[1]
        if name == "shli":
            most = code.constant(result.type.bits - 1, result.type)
            amount = code.binary("minui", second, most)
            back = code.binary("shrsi" if signed else "shrui", result, amount)
            return code.compare(NE, back, first)
        if name == "muli":
            return self._emit_product_overflows(result, first, second, signed)
        if not signed:
            small = (result, first) if name == "addi" else (first, second)
            return code.compare(ULT, *small)
        other = code.binary("xori", *((second, result) if name == "addi" else (first, second)))
        both = code.binary("andi", code.binary("xori", first, result), other)
        return code.compare(SLT, both, code.constant(0, both.type))

    def _emit_product_overflows(
        self, result: IRValue, first: IRValue, second: IRValue, signed: bool
    ) -> IRValue:
        code = self._code
        if result.type.bits < 64:
            wide = code.binary("muli", *(code.extend(v, "i64", signed) for v in (first, second)))
            return code.compare(NE, wide, code.extend(result, "i64", signed))
        high = code.emit("tt.mulhiui", (first, second), result.type)
        if not signed:
            return code.is_nonzero(high)
        sign = code.constant(63, result.type)
        for factor, other in ((first, second), (second, first)):
            less = code.binary("andi", code.binary("shrsi", factor, sign), other)
            high = code.binary("subi", high, less)
        return code.compare(NE, high, code.binary("shrsi", result, sign))
