"""Twins of the integers that addresses are made of: which of them hold a wrapped number.

A twin is 0 or the number of a remembered wrap. It is computed beside its integer and looked at when
a lane that is on goes through the address; so a wrap that is masked, or only stored, is none.
"""

from __future__ import annotations

from harness.kernels.cpu.number_formats import llvm_type, triton_type_name
from harness.kernels.cpu.scratch_values import LaneRegister, ScratchValues
from harness.kernels.ir.graph import IROperation, IRValue

_OPERATOR_SYMBOLS = {
    "arith.addi": ("+", "add"),
    "arith.subi": ("-", "sub"),
    "arith.muli": ("*", "mul"),
    "arith.shli": ("<<", ""),
    "arith.trunci": ("narrowed", ""),
}


class LaneOverflowTracker:
    def __init__(self, emitter: ScratchValues) -> None:
        self._emitter = emitter
        self.scalars: dict[IRValue, str] = {}
        self.buffers: dict[IRValue, str] = {}
        self.slots: dict[IRValue, str] = {}

    def emit_result_state(
        self, operation: IROperation, value: str, operands: list[LaneRegister]
    ) -> str | None:
        """Of an element-wise operation's result."""
        result = operation.result
        if result not in self._emitter.address_integers:
            return None
        if operation.name == "arith.select":
            return self._emit_selected_state(operands)
        twins = [twin for _, twin in operands if twin is not None]
        united = self.emit_merge(twins)
        if operation.name == "arith.andi" and united is not None:
            united = self._emit_masked_state(operation, operands, united)
        if operation.name in _OPERATOR_SYMBOLS and result.type.is_integer and result.type.bits > 1:
            return self._emit_operation_state(operation, value, operands, united)
        return united

    def emit_merge(self, states: list[str]) -> str | None:
        """The first that is a wrap."""
        code, united = self._emitter.code, None
        for twin in states:
            if united is None:
                united = twin
            else:
                some = code.let(f"icmp ne i32 {united}, 0")
                united = code.let(f"select i1 {some}, i32 {united}, i32 {twin}")
        return united

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
        """A wrapped number's low bits are right, and a mask without a sign keeps just them."""
        code = self._emitter.code
        kind = llvm_type(operation.result.type.element)
        for (_, number), (mask, other) in (operands, operands[::-1]):
            if number is not None and other is None:
                kept = code.let(f"icmp sge {kind} {mask}, 0")
                return code.let(f"select i1 {kept}, i32 0, i32 {operand_state}")
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
        wrapped = self._emit_overflow_test(operation, value, [one for one, _ in operands], signed)
        if wrapped is None:
            return operand_state or "0"
        symbol, _ = _OPERATOR_SYMBOLS[operation.name]
        element = operation.result.type.element
        site = self._emitter.add_site(symbol, operation, element if signed else "u" + element)
        left = (operands[0][0], llvm_type(operation.operands[0].type.element))
        right = (operands[1][0], kind) if len(operands) > 1 else ("0", kind)
        return self.emit_overflow_record(
            site, wrapped, signed, left, right, (value, kind), operand_state
        )

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
        """The twin: a new number where this operation wrapped, else what was there."""
        code = self._emitter.code
        slot = code.alloca("i32")
        code.store("i32", operand_state or "0", slot)
        with code.when(overflowed):
            wide = [self._emit_extension(*one, signed) for one in (left, right, result)]
            words = ", ".join(f"i64 {one}" for one in wide)
            number = code.let(f"call i32 @unfix_wrap(ptr %context, i64 {site}, {words})")
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
        _, name = _OPERATOR_SYMBOLS[operation.name]
        name = f"{'s' if signed else 'u'}{name}"
        both = code.let(
            f"call {{ {kind}, i1 }} @llvm.{name}.with.overflow.{kind}"
            f"({kind} {operands[0]}, {kind} {operands[1]})"
        )
        return code.let(f"extractvalue {{ {kind}, i1 }} {both}, 1")

    def set_result_buffer(self, result: IRValue, buffer: str) -> None:
        """A result's twin lies in memory."""
        if result.type.shape:
            self.buffers[result] = buffer
        else:
            self.scalars[result] = self._emitter.emit_lane_load(buffer, "i32", "0")

    def emit_state_copy(self, target: IRValue, source: str | None, size: int) -> None:
        """What control flow carries; zeros where nothing can have wrapped."""
        if source is not None:
            self._emitter.emit_copy(self.buffers[target], source, size)
            return
        to = self._emitter.emit_buffer_address(self.buffers[target])
        self._emitter.code.emit(
            f"call void @llvm.memset.p0.i64(ptr {to}, i8 0, i64 {size}, i1 false)"
        )


def format_integer_type(element: str) -> str:
    return f"u{triton_type_name(element[1:])}" if element[0] == "u" else triton_type_name(element)
