"""Atomic updates: blocks and threads run one after another, so each is a load and a store."""

from __future__ import annotations

from harness.sanitizer.ptx.instructions import Instruction, is_float_type, space_of
from harness.sanitizer.ptx.memory_ops import emit_address, emit_check, emit_uninitialized_store
from harness.sanitizer.ptx.parser import bits_of_type
from harness.sanitizer.ptx.thread_code import LLVM_FLOATS, ThreadCode

_VERBS = ("add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas")


def emit_atomic(code: ThreadCode, instruction: Instruction) -> None:
    """`atom` gives the old value; `red` gives nothing."""
    verb = instruction.find(*_VERBS)
    kind = instruction.type
    if verb is None or instruction.has("v2", "v4", "v8", "b128"):
        raise instruction.refuse()
    bits = bits_of_type(kind)
    address = emit_address(code, instruction)
    target, *operands = instruction.operands
    site = emit_check(code, instruction, "update", address, bits // 8, target)
    depends = code.join_companions(operands, "u")
    emit_uninitialized_store(code, instruction, site, address, bits // 8, depends)
    pointer = code.to_pointer(address)
    old = code.let(f"load i{bits}, ptr {pointer}, align 1")
    values = [code.get(value, bits) for value in operands]
    new = _emit_update(code, instruction, verb, kind, old, values)
    code.emit(f"store i{bits} {new}, ptr {pointer}, align 1")
    if instruction.results:
        code.set(instruction.results[0], old, bits, kind[0] == "s")


def _emit_update(
    code: ThreadCode, instruction: Instruction, verb: str, kind: str, old: str, values: list[str]
) -> str:
    bits = bits_of_type(kind)
    new = values[0]
    if verb == "exch":
        return new
    if verb == "cas":
        same = code.let(f"icmp eq i{bits} {old}, {new}")
        return code.let(f"select i1 {same}, i{bits} {values[1]}, i{bits} {old}")
    if kind.endswith("x2"):
        return _emit_pair(code, instruction, verb, kind[:-2], old, new)
    if is_float_type(kind):
        return _emit_float(code, instruction, verb, kind, old, new)
    if verb in ("inc", "dec"):
        step = code.let(f"{'add' if verb == 'inc' else 'sub'} i{bits} {old}, 1")
        above = code.let(f"icmp u{'ge' if verb == 'inc' else 'gt'} i{bits} {old}, {new}")
        if verb == "inc":
            return code.let(f"select i1 {above}, i{bits} 0, i{bits} {step}")
        empty = code.let(f"icmp eq i{bits} {old}, 0")
        restart = code.let(f"or i1 {above}, {empty}")
        return code.let(f"select i1 {restart}, i{bits} {new}, i{bits} {step}")
    if verb in ("min", "max"):
        name = f"{'s' if kind[0] == 's' else 'u'}{verb}"
        return code.call_intrinsic(name, f"i{bits}", old, new)
    return code.let(f"{verb} i{bits} {old}, {new}")


def _emit_float(
    code: ThreadCode, instruction: Instruction, verb: str, kind: str, old: str, new: str
) -> str:
    left, right = code.bits_to_float(old, kind), code.bits_to_float(new, kind)
    return code.float_to_bits(_combine_operands(code, instruction, verb, kind, left, right), kind)


def _combine_operands(
    code: ThreadCode, instruction: Instruction, verb: str, kind: str, left: str, right: str
) -> str:
    llvm = LLVM_FLOATS[kind]
    if verb == "add":
        if kind == "f32" and space_of(instruction) == "global":  # subnormals are flushed there
            left = code.let(f"call float @flush(float {left})")
            right = code.let(f"call float @flush(float {right})")
            return code.let(f"call float @flush(float {code.let(f'fadd float {left}, {right}')})")
        return code.let(f"fadd {llvm} {left}, {right}")
    if verb in ("min", "max"):
        return code.call_intrinsic(f"{verb}imumnum", llvm, left, right)
    raise instruction.refuse()


def _emit_pair(
    code: ThreadCode, instruction: Instruction, verb: str, kind: str, old: str, new: str
) -> str:
    halves = zip(code.split_halves(old), code.split_halves(new), strict=True)
    return code.join_halves([_emit_float(code, instruction, verb, kind, *pair) for pair in halves])
