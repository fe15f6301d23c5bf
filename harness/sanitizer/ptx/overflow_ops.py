"""The true values of 32-bit integers on their way into an address, beside the wrapped ones.

Companions: `t` is the true value (64 bits) of an integer that may wrap, `w` 1 + the site where both
began to differ, `o` the state of a 64-bit value: OVERFLOW_FLAG and the number of a recorded
overflow that it depends on, else the largest 32-bit integer on the way. A difference that a later
operation undoes, as in `(a - b) + c`, is none where the integer is widened.
"""

from __future__ import annotations

from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.ptx.abi import OVERFLOW_FLAG
from harness.sanitizer.ptx.flow import is_vector_move
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.overflow_flow import (
    OverflowFlow,
    is_narrowing,
    is_widening,
    reads_signed,
    value_operands,
)
from harness.sanitizer.ptx.thread_code import PtxSite, ThreadCode


class OverflowTracking:
    def __init__(self, code: ThreadCode, flow: OverflowFlow) -> None:
        self._code, self._flow = code, flow
        code.companions["t"] = dict.fromkeys(flow.may_wrap, "i64")
        code.companions["w"] = dict.fromkeys(flow.may_wrap, "i32")
        code.companions["o"] = dict.fromkeys(flow.wide, "i32")
        code.companion_defaults["t"] = lambda source, target: self._true_value(
            source, flow.signs[target]
        )

    def emit(self, operation: IROperation) -> None:
        """Emit the companions of an operation's results; the operation itself is emitted."""
        for result in operation.results:
            if result in self._flow.may_wrap:
                self._emit_true_value(Instruction(operation), result)
            elif result in self._flow.wide:
                self._emit_state(Instruction(operation), result)

    # 32 bits

    def _true_value(self, value: IRValue, signed: bool) -> str:
        code = self._code
        constant = code.constant_of(value)
        if constant is not None:
            # `add.s32 %r, %r1, -1` is a subtraction for unsigned integers, too.
            wrapped = constant & 0xFFFFFFFF
            return str(wrapped - (1 << 32) if wrapped >> 31 else wrapped)
        if value in self._flow.may_wrap:
            return code.get_companion(value, "t")
        return code.resize(code.get(value, 32), 32, 64, signed)

    def _emit_true_value(self, instruction: Instruction, result: IRValue) -> None:
        code, signed = self._code, self._flow.signs[result]
        wrapped = code.resize(code.get(result, 32), 32, 64, signed)
        true = self._compute(instruction, signed, wrapped)
        code.set_companion(result, "t", true)
        site = 1 + code.add_site(
            PtxSite(instruction.operation.source, instruction.opcode, 4, instruction.name)
        )
        differs = code.let(f"icmp ne i64 {true}, {wrapped}")
        where = code.let(f"select i1 {differs}, i32 {site}, i32 0")
        for value in value_operands(instruction):
            if value in self._flow.may_wrap:
                earlier = code.get_companion(value, "w")
                known = code.let(f"icmp ne i32 {earlier}, 0")
                where = code.let(f"select i1 {known}, i32 {earlier}, i32 {where}")
        code.set_companion(result, "w", where)

    def _compute(self, instruction: Instruction, signed: bool, wrapped: str) -> str:
        code, opcode = self._code, instruction.opcode
        if is_narrowing(instruction):
            return code.get(instruction.operands[0], 64)
        if opcode == "or":  # x - 2**n
            return code.resize(code.get(instruction.results[0], 32), 32, 64, True)
        row = find_operation(opcode)
        if not row.exact:
            return wrapped
        if row.reads_sign:
            signed = reads_signed(instruction)
        values = [self._true_value(operand, signed) for operand in value_operands(instruction)]
        if opcode == "mov":
            return values[0]
        if row.true_llvm:
            return code.let(row.true_llvm.format(*values))
        if opcode == "mad":
            product = code.let(f"mul i64 {values[0]}, {values[1]}")
            return code.let(f"add i64 {product}, {values[2]}")
        if opcode == "selp":
            truth = code.get(instruction.operands[2], 1)
            return code.let(f"select i1 {truth}, i64 {values[0]}, i64 {values[1]}")
        amount = code.resize(code.get(instruction.operands[1], 32), 32, 64)
        large = code.let(f"icmp ugt i64 {amount}, 31")
        amount = code.call_intrinsic("umin", "i64", amount, 31)
        moved = code.let(f"{'shl' if opcode == 'shl' else 'ashr'} i64 {values[0]}, {amount}")
        return code.let(f"select i1 {large}, i64 {wrapped}, i64 {moved}")

    # 64 bits

    def _emit_state(self, instruction: Instruction, result: IRValue) -> None:
        code = self._code
        if instruction.opcode == "mov" and is_vector_move(instruction.operation):
            code.set_companion(result, "o", "0")
            return
        state = code.alloca("i32", "0")
        operands = list(value_operands(instruction))
        if result in self._flow.low_halves:
            self._check_low_half(instruction, self._flow.low_halves[result], state)
            operands = []
        if is_widening(instruction):
            narrow = operands[:2]
            for value in narrow:
                if value in self._flow.may_wrap:
                    self._check_widening(value, reads_signed(instruction), state)
            operands = operands[len(narrow) :]
        if instruction.opcode == "selp":
            left, right = (code.get_companion(operand, "o") for operand in operands)
            truth = code.get(instruction.operands[2], 1)
            code.store("i32", code.let(f"select i1 {truth}, i32 {left}, i32 {right}"), state)
            operands = []
        for value in operands:
            if code.has_companion(value, "o"):
                self._raise_state(code.get_companion(value, "o"), state)
        code.set_companion(result, "o", code.load("i32", state))

    def _raise_state(self, other: str, state: str) -> None:
        """Keep the larger of two states: an overflow is larger than any integer."""
        code = self._code
        code.store("i32", code.call_intrinsic("umax", "i32", code.load("i32", state), other), state)

    def _record_overflow(self, site: str, true: str, wrapped: str, state: str) -> None:
        code = self._code
        number = code.let(
            f"call i32 @ptx_record(ptr %context, i64 {site}, i64 {true}, i64 {wrapped})"
        )
        self._raise_state(code.let(f"or i32 {number}, {OVERFLOW_FLAG}"), state)

    def _check_widening(self, value: IRValue, signed: bool, state: str) -> None:
        """Enter an overflow, and how large the integer is: of unsigned ones the half."""
        code = self._code
        narrow = code.get(value, 32)
        wrapped = code.resize(narrow, 32, 64, signed)
        true = code.get_companion(value, "t")
        extent = (
            f"call i32 @llvm.smax.i32(i32 {narrow}, i32 0)" if signed else f"lshr i32 {narrow}, 1"
        )
        agrees = code.let(f"icmp eq i64 {true}, {wrapped}")
        self._raise_state(code.let(f"select i1 {agrees}, i32 {code.let(extent)}, i32 0"), state)
        with code.when(code.let(f"xor i1 {agrees}, true")):
            where = code.let(f"sub i32 {code.get_companion(value, 'w')}, 1")
            self._record_overflow(code.let(f"zext i32 {where} to i64"), true, wrapped, state)

    def _check_low_half(self, instruction: Instruction, whole: IRValue, state: str) -> None:
        code = self._code
        true = code.get(whole, 64)
        low = code.let(f"trunc i64 {true} to i32")
        wrapped = code.let(f"sext i32 {low} to i64")
        with code.when(code.let(f"icmp ne i64 {true}, {wrapped}")):
            site = code.add_site(
                PtxSite(instruction.operation.source, "narrowed", 4, instruction.name)
            )
            self._record_overflow(str(site), true, wrapped, state)
