"""Overflow states: for each integer that forms an address, whether it depends on an overflow.

A state is 0, or the number of a recorded overflow with the sign bit set. It is computed beside its
integer and checked when an active lane uses the address, so an overflow in a masked lane, or in a
value that is only stored, is no violation. Example: `row * stride` with 3 * 2**30 in int32 is
recorded as number 1; the product's state is 1, so is that of `base + product`, and the load through
it reports number 1.

Where extents are measured, a state without the sign bit is the largest 32-bit integer on the way:
how near to 2^31 an address comes. Of `row * stride + lane` with 3 * 2**29 + 5 it is 1,610,612,741.
"""

from __future__ import annotations

from harness.sanitizer.cpu.abi import OVERFLOW_FLAG
from harness.sanitizer.cpu.scratch_values import LaneRegister, ScratchValues
from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.ir.operations import OVERFLOW_SYMBOLS, OVERFLOWING_OPERATIONS
from harness.sanitizer.llvm.number_formats import llvm_type


class LaneOverflowTracker:
    def __init__(self, emitter: ScratchValues) -> None:
        self._emitter = emitter
        self.scalars: dict[IRValue, str] = {}
        self.buffers: dict[IRValue, str] = {}
        self.slots: dict[IRValue, str] = {}

    def emit_result_state(
        self, operation: IROperation, value: str, operands: list[LaneRegister]
    ) -> str | None:
        """Emit the state of an element-wise operation's result."""
        result = operation.result
        if result not in self._emitter.address_integers:
            return None
        if operation.name == "arith.select":
            return self._emit_selected_state(operands)
        states = [state for _, state in operands if state is not None]
        merged = self.emit_merge(states)
        if operation.name == "arith.andi" and merged is not None:
            merged = self._emit_masked_state(operation, operands, merged)
        wraps = operation.name in OVERFLOWING_OPERATIONS
        if wraps and result.type.is_integer and result.type.bits > 1:
            return self._emit_operation_state(operation, value, operands, merged)
        return merged

    def emit_merge(self, states: list[str]) -> str | None:
        """Emit the first state that is not 0."""
        code, merged = self._emitter.code, None
        for state in states:
            if merged is None:
                merged = state
            elif self._emitter.measures_extents:
                merged = code.let(f"call i32 @llvm.umax.i32(i32 {merged}, i32 {state})")
            else:
                is_overflow = code.let(f"icmp ne i32 {merged}, 0")
                merged = code.let(f"select i1 {is_overflow}, i32 {merged}, i32 {state}")
        return merged

    def _emit_selected_state(self, operands: list[LaneRegister]) -> str | None:
        (condition, _), (_, true), (_, false) = operands
        if true is None and false is None:
            return None
        return self._emitter.code.let(
            f"select i1 {condition}, i32 {true or '0'}, i32 {false or '0'}"
        )

    def _emit_masked_state(
        self, operation: IROperation, operands: list[LaneRegister], operand_state: str
    ) -> str:
        """Emit the state of a bitwise and: a non-negative mask keeps low bits, which are right."""
        code = self._emitter.code
        kind = llvm_type(operation.result.type.element)
        for (_, number), (mask, other) in (operands, operands[::-1]):
            if number is not None and other is None:
                is_cleared = code.let(f"icmp sge {kind} {mask}, 0")
                return code.let(f"select i1 {is_cleared}, i32 0, i32 {operand_state}")
        return operand_state

    def _emit_operation_state(
        self,
        operation: IROperation,
        value: str,
        operands: list[LaneRegister],
        operand_state: str | None,
    ) -> str:
        signed = self._emitter.address_integers.signed[operation.result]
        kind = llvm_type(operation.result.type.element)
        overflowed = self._emit_overflow_test(
            operation, value, [operand for operand, _ in operands], signed
        )
        if self._emitter.measures_extents and kind == "i32":
            extent = self._emit_extent(value, signed)
            operand_state = self.emit_merge([extent, operand_state or "0"])
        if overflowed is None:
            return operand_state or "0"
        element = operation.result.type.element
        site = self._emitter.add_site(
            OVERFLOW_SYMBOLS[operation.name], operation, element if signed else "u" + element
        )
        left = (operands[0][0], llvm_type(operation.operands[0].type.element))
        right = (operands[1][0], kind) if len(operands) > 1 else ("0", kind)
        return self.emit_overflow_record(
            site, overflowed, signed, left, right, (value, kind), operand_state
        )

    def _emit_extent(self, value: str, signed: bool) -> str:
        """Emit the magnitude of a 32-bit integer, below the sign bit."""
        code = self._emitter.code
        if signed:
            value = code.let(f"call i32 @llvm.abs.i32(i32 {value}, i1 false)")
        return code.let(f"call i32 @llvm.umin.i32(i32 {value}, i32 {OVERFLOW_FLAG - 1})")

    def emit_overflow_record(
        self,
        site: int,
        overflowed: str,
        signed: bool,
        left: tuple[str, str],
        right: tuple[str, str],
        result: tuple[str, str],
        operand_state: str | None,
    ) -> str:
        """Emit a new number if the operation overflowed, else the state of its operands."""
        code = self._emitter.code
        slot = code.alloca("i32")
        code.store("i32", operand_state or "0", slot)
        with code.when(overflowed):
            wide = [self._emit_extension(*operand, signed) for operand in (left, right, result)]
            words = ", ".join(f"i64 {operand}" for operand in wide)
            number = code.let(f"call i32 @unfix_record_overflow(ptr %context, i64 {site}, {words})")
            code.store("i32", self.emit_merge([number, operand_state or "0"]) or "0", slot)
        return code.load("i32", slot)

    def _emit_extension(self, value: str, kind: str, signed: bool) -> str:
        if kind == "i64" or not value.startswith("%"):
            return value
        return self._emitter.code.let(f"{'sext' if signed else 'zext'} {kind} {value} to i64")

    def _emit_overflow_test(
        self, operation: IROperation, value: str, operands: list[str], signed: bool
    ) -> str | None:
        code = self._emitter.code
        kind = llvm_type(operation.result.type.element)
        if operation.name == "arith.trunci":
            wide = llvm_type(operation.operands[0].type.element)
            back = code.let(f"{'sext' if signed else 'zext'} {kind} {value} to {wide}")
            return code.let(f"icmp ne {wide} {back}, {operands[0]}")
        if operation.name == "arith.shli":
            amount = code.let(
                f"call {kind} @llvm.umin.{kind}({kind} {operands[1]}, {kind} {int(kind[1:]) - 1})"
            )
            back = code.let(f"{'ashr' if signed else 'lshr'} {kind} {value}, {amount}")
            return code.let(f"icmp ne {kind} {back}, {operands[0]}")
        if not signed and kind == "i64" and operation.name != "arith.muli":
            return None
        verb = operation.name.removeprefix("arith.").removesuffix("i")
        name = f"{'s' if signed else 'u'}{verb}"
        both = code.let(
            f"call {{ {kind}, i1 }} @llvm.{name}.with.overflow.{kind}"
            f"({kind} {operands[0]}, {kind} {operands[1]})"
        )
        return code.let(f"extractvalue {{ {kind}, i1 }} {both}, 1")

    def set_result_buffer(self, result: IRValue, buffer: str) -> None:
        """Take a buffer as the state of a result."""
        if result.type.shape:
            self.buffers[result] = buffer
        else:
            self.scalars[result] = self._emitter.emit_lane_load(buffer, "i32", "0")

    def emit_state_copy(self, target: IRValue, source: str | None, size: int) -> None:
        """Copy the state of a carried value; zeros if no source has a state."""
        if source is not None:
            self._emitter.emit_copy(self.buffers[target], source, size)
            return
        to = self._emitter.emit_buffer_address(self.buffers[target])
        self._emitter.code.fill_bytes(to, 0, size)
