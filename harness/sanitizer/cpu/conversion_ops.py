"""Conversions of one lane between number formats: integer casts, floats to floats or integers."""

from __future__ import annotations

from collections.abc import Callable

from harness.sanitizer.cpu.abi import LaunchField, UndefinedResult
from harness.sanitizer.ir.graph import IROperation
from harness.sanitizer.llvm.number_formats import (
    BIT_ENCODED_FORMATS,
    FLOAT8_FORMATS,
    LLVM_FLOAT_TYPES,
    UnsupportedOnCpu,
    emit_narrowing,
    emit_widening,
    llvm_type,
    llvm_type_bits,
    triton_type_name,
)
from harness.sanitizer.llvm.text import LlvmFunction

# Emits the code for one lane from the registers of its operands, and returns the result's.
ElementEmitter = Callable[[LlvmFunction, IROperation, list[str]], str]


def make_cast_emitter(name: str) -> ElementEmitter:
    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        source = llvm_type(operation.operands[0].type.element)
        target = llvm_type(operation.result.type.element)
        if source == target:
            return operands[0]
        return code.let(f"{name} {source} {operands[0]} to {target}")

    return emit


def emit_index_cast(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    source, target = (value.type.element for value in (operation.operands[0], operation.result))
    is_wider = llvm_type_bits(llvm_type(source)) < llvm_type_bits(llvm_type(target))
    return make_cast_emitter("sext" if is_wider else "trunc")(code, operation, operands)


def emit_float_conversion(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    source, target = operation.operands[0].type.element, operation.result.type.element
    for element in (source, target):
        if element not in LLVM_FLOAT_TYPES:
            raise UnsupportedOnCpu(f"a conversion of {source} to {target}")
    names = f"{triton_type_name(source)} to {triton_type_name(target)}"
    if operation.name == "tt.fp_to_fp" and operation.get_int("rounding", 1) != 1:
        raise UnsupportedOnCpu(f"a conversion of {names} rounded toward zero")
    if "f64" in (source, target) and {source, target} & BIT_ENCODED_FORMATS:
        raise UnsupportedOnCpu(f"a conversion of {names}")
    if (source, target) == ("f8E5M2", "bf16"):
        # Compiled kernels turn infinities into large numbers: an accident of the compiler.
        size = code.let(f"and i8 {operands[0]}, 127")
        with code.when(code.let(f"icmp uge i8 {size}, 124")):
            answer = str(int(UndefinedResult.CONVERSION))
            code.store_element("i64", answer, "%context", LaunchField.UNDEFINED_RESULT)
    value, kind = emit_widening(code, operands[0], source)
    return emit_narrowing(code, value, kind, target)


def make_int_to_float_emitter(name: str) -> ElementEmitter:
    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        source = llvm_type(operation.operands[0].type.element)
        element = operation.result.type.element
        target = "float" if element in BIT_ENCODED_FORMATS else llvm_type(element)
        if element in FLOAT8_FORMATS:
            raise UnsupportedOnCpu(f"a conversion of {source} to {triton_type_name(element)}")
        value = code.let(f"{name} {source} {operands[0]} to {target}")
        return emit_narrowing(code, value, target, element)

    return emit


def make_float_to_int_emitter(name: str) -> ElementEmitter:
    """Round toward zero; a number that does not fit becomes the nearest one that does.

    NaN becomes zero, and in 64 bits the smallest number, as on a GPU.
    """

    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        value, kind = emit_widening(code, operands[0], operation.operands[0].type.element)
        target = llvm_type(operation.result.type.element)
        if target == "i1":
            return code.let(f"fcmp une {kind} {value}, 0.0")
        if kind == "half":
            value, kind = code.let(f"fpext half {value} to float"), "float"
        suffix = "f32" if kind == "float" else "f64"
        result = code.let(f"call {target} @llvm.{name}.sat.{target}.{suffix}({kind} {value})")
        if name == "fptosi" and target == "i64":
            nan = code.let(f"fcmp uno {kind} {value}, 0.0")
            result = code.let(f"select i1 {nan}, i64 {-(1 << 63)}, i64 {result}")
        return result

    return emit
