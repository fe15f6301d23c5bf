"""`tl.device_print`: a line for each element, in the form that Triton prints on a GPU.

Lines go to the process's standard output at once. A scalar has one line for each program; a GPU
prints it once for each thread.
"""

from __future__ import annotations

from math import prod

from harness.sanitizer.cpu.control_flow import ControlFlowLowering
from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.llvm.number_formats import emit_widening, llvm_type

_STANDARD_OUTPUT = 1
PRINT_DECLARATION = "declare i32 @dprintf(i32, ptr, ...)\n"


def lower_print(emitter: ControlFlowLowering, operation: IROperation) -> None:
    prefix = operation.attributes["prefix"].strip('"').replace("%", "%%")
    operands = operation.operands
    emitter.materialize(*operands)
    if not operands:
        _emit_line(emitter, prefix, [])
    for number, value in enumerate(operands):
        named = f"{prefix}(operand {number}) " if len(operands) > 1 else prefix
        is_signed = bool(operation.get_ints("isSigned")[number])
        with emitter.code.loop(max(1, value.type.lanes)) as index:
            _emit_element(emitter, named, value, index, is_signed, operation.get_flag("hex"))


def _emit_element(
    emitter: ControlFlowLowering,
    prefix: str,
    value: IRValue,
    index: str,
    is_signed: bool,
    is_hexadecimal: bool,
) -> None:
    code, shape = emitter.code, value.type.shape
    words, arguments = [], []
    for axis, side in enumerate(shape):
        over = code.let(f"udiv i64 {index}, {prod(shape[axis + 1 :])}")
        arguments.append(f"i64 {code.let(f'urem i64 {over}, {side}')}")
        words.append(f"%{len(str(side - 1))}lld")
    lane, _ = emitter.emit_lane(value, index, {})
    element = value.type.element
    kind = llvm_type(element)
    if value.type.is_pointer:
        word, number = "%p", f"ptr {code.to_pointer(lane)}"
    elif element.startswith("i"):
        bits = int(kind[1:])
        word = f"0x%0{bits // 4}llx" if is_hexadecimal else "%lld" if is_signed else "%llu"
        extension = "sext" if is_signed and not is_hexadecimal and bits > 1 else "zext"
        wide = lane if bits == 64 else code.let(f"{extension} {kind} {lane} to i64")
        number = f"i64 {wide}"
    else:
        wide, wide_kind = emit_widening(code, lane, element)
        if wide_kind != "double":
            wide = code.let(f"fpext {wide_kind} {wide} to double")
        word, number = "%f", f"double {wide}"
    _emit_line(emitter, f" idx ({', '.join(words)}){prefix}{word}", [*arguments, number])


def _emit_line(emitter: ControlFlowLowering, text: str, arguments: list[str]) -> None:
    code, definitions = emitter.code, emitter.global_definitions
    form = f"pid (%d, %d, %d){text}\n\0".encode()
    name = f"@listed{len(definitions)}"
    escaped = "".join(f"\\{byte:02X}" for byte in form)
    definitions.append(f'{name} = internal constant [{len(form)} x i8] c"{escaped}"')
    words = ", ".join([f"ptr {name}", "i32 %x", "i32 %y", "i32 %z", *arguments])
    code.let(f"call i32 (i32, ptr, ...) @dprintf(i32 {_STANDARD_OUTPUT}, {words})")
