"""The largest value that an unsigned integer of 32 bits can have, as far as a kernel's text says.

The compiler knows as much when it makes `x | -2**n` of `x - 2**n`: what a mask, a shift, a
remainder or a thread's place leaves of x. Example: in a kernel of up to 256 threads `%tid.x` is at
most 255, and `shl.b32 %r2, %r1, 3` of it at most 2040.
"""

from __future__ import annotations

from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph
from harness.sanitizer.ptx.instructions import Instruction

MOST_THREADS = "most_threads"  # the graph's attribute
_ALL_THREADS = 1024
_LARGEST = (1 << 32) - 1
_DEPTH = 16  # operations
_SIZES = {"u8": 255, "u16": 65535}


class IntegerBounds:
    def __init__(self, graph: KernelGraph, definitions: dict[IRValue, IROperation]) -> None:
        self._threads = int(graph.attributes.get(MOST_THREADS, _ALL_THREADS))
        self._definitions = definitions
        self._largest: dict[IRValue, int] = {}

    def find_largest(self, value: IRValue, depth: int = 0) -> int:
        """Find the largest value that the 32 bits can have, read as unsigned."""
        operation = self._definitions.get(value)
        if operation is None or depth > _DEPTH:
            return _LARGEST
        if value not in self._largest:
            largest = self._find_result(Instruction(operation), depth + 1)
            self._largest[value] = _LARGEST if largest is None else largest
        return self._largest[value]

    def _find_result(self, instruction: Instruction, depth: int) -> int | None:
        """Find what an operation leaves of its operands; None if it may be anything."""
        opcode, attributes = instruction.opcode, instruction.operation.attributes
        if opcode == "constant":
            return int(attributes["value"]) & _LARGEST
        if opcode == "special":
            return self._find_special(attributes["register"])
        if len(instruction.results) != 1 or instruction.has("hi", "wide", "sat", "cc"):
            return None
        kinds = instruction.types
        if opcode == "cvt":
            return _SIZES.get(kinds[-1]) if kinds[:1] in (["u32"], ["s32"]) else None
        if not kinds or kinds[-1] not in ("b32", "u32", "s32"):
            return None
        operands = [self.find_largest(operand, depth) for operand in instruction.operands]
        return self._combine(opcode, kinds[-1], operands, instruction.operands)

    def _find_special(self, register: str) -> int | None:
        if register.startswith("%tid."):
            return self._threads - 1
        return {"%laneid": 31, "%warpid": 31}.get(register)

    def _combine(
        self, opcode: str, kind: str, largest: list[int], operands: tuple[IRValue, ...]
    ) -> int | None:
        constants = [self._get_constant(operand) for operand in operands]
        has_sign = kind == "s32" and largest[0] >> 31
        match opcode:
            case "mov" if len(operands) == 1:
                return largest[0]
            case "and":
                return min(largest)
            case "or" | "xor":
                return (1 << max(largest).bit_length()) - 1
            case "add":
                result = sum(largest)
            case "mul":
                result = largest[0] * largest[1]
            case "mad":
                result = largest[0] * largest[1] + largest[2]
            case "shl" if constants[1] is not None:
                result = largest[0] << min(constants[1], 32)
            case "shr" if constants[1] is not None and not has_sign:
                return largest[0] >> min(constants[1], 32)
            case "rem" if constants[1] and not has_sign:
                return min(largest[0], constants[1] - 1)
            case "min" if kind == "u32" or not any(bound >> 31 for bound in largest):
                return min(largest)
            case _:
                return None
        return result if result <= _LARGEST else None

    def _get_constant(self, value: IRValue) -> int | None:
        operation = self._definitions.get(value)
        if operation is None or operation.name != "ptx.constant":
            return None
        return int(operation.attributes["value"]) & _LARGEST
