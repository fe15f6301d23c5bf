"""How numbers are written, stored and converted: LLVM's types, constants, bfloat16, 8-bit floats.

bfloat16 and the 8-bit formats are bits here: widened to float32, where one operation on two of them
is exact or rounded once more at most, and narrowed to the nearest, ties to even; the 8-bit ones
saturate, as the hardware's conversions do.
"""

from __future__ import annotations

import functools
import math
import re
import struct

from harness.sanitizer.llvm.float_helpers import FLOAT_HELPERS
from harness.sanitizer.llvm.text import LlvmFunction

FLOAT8_FORMATS = {"f8E4M3FN": (4, 3, 7, 0x7E), "f8E5M2": (5, 2, 15, 0x7B)}
BIT_ENCODED_FORMATS = frozenset({"bf16", *FLOAT8_FORMATS})
LLVM_FLOAT_TYPES = {"f16": "half", "f32": "float", "f64": "double", "bf16": "i16"}
LLVM_FLOAT_TYPES |= dict.fromkeys(FLOAT8_FORMATS, "i8")
# The floats that LLVM computes with, narrowest first, each with the end of an intrinsic's name.
FLOAT_SUFFIXES = {"half": "f16", "float": "f32", "double": "f64"}
# Names that PTX has for formats, and for comparisons of floats.
PTX_FLOAT8 = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}
PTX_COMPARISONS = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
PTX_COMPARISONS |= {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt"}
PTX_COMPARISONS |= {"geu": "uge", "num": "ord", "nan": "uno"}


class UnsupportedOnCpu(Exception):
    """The CPU's back end cannot compute an operation exactly."""


def llvm_type(element: str) -> str:
    if element.startswith("ptr<"):
        return "i64"
    if element in LLVM_FLOAT_TYPES:
        return LLVM_FLOAT_TYPES[element]
    if element[0] == "i" and element[1:].isdigit() and int(element[1:]) <= 64:
        return element
    if element == "index":
        return "i64"
    raise UnsupportedOnCpu(f"numbers of type {element}")


def llvm_storage_type(element: str) -> str:
    """Return the type in memory, where an i1 takes a byte."""
    return "i8" if element == "i1" else llvm_type(element)


def size_of(element: str) -> int:
    """Return an element's bytes in memory; a pointer has eight."""
    return llvm_type_bits(llvm_storage_type(element)) // 8


def format_zero(element: str) -> str:
    return "0.0" if llvm_type(element) in FLOAT_SUFFIXES else "0"


def widened_type(element: str) -> str:
    """Return the type in which LLVM computes with floats of this format."""
    return "float" if element in BIT_ENCODED_FORMATS else llvm_type(element)


def llvm_type_bits(llvm: str) -> int:
    """Return the width of an LLVM type."""
    return {"half": 16, "float": 32, "double": 64}.get(llvm) or int(llvm[1:])


def triton_type_name(element: str) -> str:
    """Return the type's name in Triton's language."""
    known = {"f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5", "bf16": "bf16", "i1": "int1"}
    if element in known:
        return known[element]
    return ("int" if element[0] == "i" else "fp") + element.lstrip("if")


# Constants


def format_literal(text: str, element: str) -> str:
    """Format a number of MLIR's text in LLVM's syntax."""
    text = text.strip()
    if text in ("true", "false"):
        return "1" if text == "true" else "0"
    if not element.startswith(("f", "bf")):
        return str(int(text, 0))
    if text.startswith("0x"):
        return _format_bits(int(text, 16), element)
    return _format_bits(encode_number(float(text), element), element)


def encode_number(value: float, element: str) -> int:
    """Return the bits of a number; those that bfloat16 has no room for are cut off."""
    form = {"f16": "<e", "f32": "<f", "bf16": "<f", "f64": "<d"}.get(element)
    if form is not None:
        bits = int.from_bytes(struct.pack(form, value), "little")
        return bits >> 16 if element == "bf16" else bits
    codes = [code for code in range(256) if _decode_float8(code, element) == value]
    if not codes:
        raise UnsupportedOnCpu(f"a constant of {triton_type_name(element)}: {value}")
    return codes[-1] if math.copysign(1.0, value) < 0 else codes[0]


def _decode_float8(code: int, element: str) -> float:
    """Decode the code of a finite number in one of the 8-bit formats."""
    if element not in FLOAT8_FORMATS:
        raise UnsupportedOnCpu(f"a constant of {element}")
    _, mantissa_bits, bias, largest = FLOAT8_FORMATS[element]
    size = code & 0x7F
    if size > largest:
        return math.nan
    exponent, mantissa = size >> mantissa_bits, size & ((1 << mantissa_bits) - 1)
    whole = mantissa + (1 << mantissa_bits if exponent else 0)
    value = math.ldexp(whole, max(exponent, 1) - bias - mantissa_bits)
    return -value if code & 0x80 else value


def _format_bits(bits: int, element: str) -> str:
    if element == "f64":
        return f"0x{bits:016X}"
    if element == "f32":
        [value] = struct.unpack("<f", struct.pack("<I", bits))
        if value != value:  # a NaN's bits widen by themselves
            sign, rest = bits >> 31, bits & 0x7FFFFF
            return f"0x{sign << 63 | 0x7FF << 52 | rest << 29:016X}"
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if element == "f16":
        return f"0xH{bits:04X}"
    return str(bits)


# Formats


def _write_conversion_functions() -> str:
    parts = [
        """
define internal float @widen_bf16(i16 %bits) alwaysinline {
  %wide = zext i16 %bits to i32
  %high = shl i32 %wide, 16
  %value = bitcast i32 %high to float
  ret float %value
}
define internal i16 @narrow_bf16(float %value) alwaysinline {
  %bits = bitcast float %value to i32
  %above = lshr i32 %bits, 16
  %odd = and i32 %above, 1
  %half = add i32 %odd, 32767
  %sum = add i32 %bits, %half
  %kept = lshr i32 %sum, 16
  %number = trunc i32 %kept to i16
  %nan = fcmp uno float %value, 0.0
  %result = select i1 %nan, i16 32767, i16 %number
  ret i16 %result
}
"""
    ]
    for name, (_, mantissa, bias, largest) in FLOAT8_FORMATS.items():
        shift = 23 - mantissa
        scale = struct.unpack("<Q", struct.pack("<d", 2.0 ** (127 - bias)))[0]
        tiny = struct.unpack("<Q", struct.pack("<d", 2.0 ** (bias + mantissa - 1)))[0]
        smallest = (127 + 1 - bias) << 23
        infinity = 0x7F if name == "f8E4M3FN" else 0x7C
        special = (
            f"%is.special = icmp eq i32 %code, {infinity}\n"
            "  %special = or i32 %sign.bits, 2143289344"
            if name == "f8E4M3FN"
            else f"%is.special = icmp uge i32 %code, {infinity}\n"
            f"  %raised = shl i32 %code, {shift}\n"
            "  %exponent = or i32 %raised, 2139095040\n"
            "  %special = or i32 %sign.bits, %exponent"
        )
        parts.append(
            f"""
define internal float @widen_{name}(i8 %bits) alwaysinline {{
  %wide = zext i8 %bits to i32
  %code = and i32 %wide, 127
  %sign = and i32 %wide, 128
  %sign.bits = shl i32 %sign, 24
  %moved = shl i32 %code, {shift}
  %small = bitcast i32 %moved to float
  %scaled = fmul float %small, 0x{scale:016X}
  %scaled.bits = bitcast float %scaled to i32
  %signed = or i32 %scaled.bits, %sign.bits
  {special}
  %chosen = select i1 %is.special, i32 %special, i32 %signed
  %value = bitcast i32 %chosen to float
  ret float %value
}}
define internal i8 @narrow_{name}(float %value) alwaysinline {{
  %bits = bitcast float %value to i32
  %high = lshr i32 %bits, 24
  %sign = and i32 %high, 128
  %size = and i32 %bits, 2147483647
  %above = lshr i32 %size, {shift}
  %odd = and i32 %above, 1
  %half = add i32 %odd, {(1 << (shift - 1)) - 1}
  %sum = add i32 %size, %half
  %kept = lshr i32 %sum, {shift}
  %normal = sub i32 %kept, {(127 - bias) << mantissa}
  %is.normal = icmp uge i32 %size, {smallest}
  %positive = bitcast i32 %size to float
  %scaled = fmul float %positive, 0x{tiny:016X}
  %whole = call float @llvm.rint.f32(float %scaled)
  %safe = call float @llvm.minimum.f32(float %whole, float 256.0)
  %subnormal = fptoui float %safe to i32
  %code = select i1 %is.normal, i32 %normal, i32 %subnormal
  %full = call i32 @llvm.umin.i32(i32 %code, i32 {largest})
  %nan = icmp ugt i32 %size, 2139095040
  %number = select i1 %nan, i32 127, i32 %full
  %result = or i32 %number, %sign
  %narrow = trunc i32 %result to i8
  ret i8 %narrow
}}
"""
        )
    return "\n".join(parts)


@functools.cache
def _index_helper_functions() -> dict[str, str]:
    text = _write_conversion_functions() + _write_division_functions()
    functions = re.finditer(r"define internal .*? @(\w+)\(.*?\n}\n", text, re.DOTALL)
    return FLOAT_HELPERS | {function[1]: function[0] for function in functions}


def select_called_helpers(text: str) -> str:
    """Select the helper functions that a kernel's module calls, and those that these call."""
    functions = _index_helper_functions()
    called = "".join(function for name, function in functions.items() if f"@{name}(" in text)
    texts = text + called
    return "\n".join(function for name, function in functions.items() if f"@{name}(" in texts)


def _write_division_functions() -> str:
    """Division that does not trap: masked lanes divide as well, perhaps by zero."""
    parts = []
    for bits in (8, 16, 32, 64):
        kind = f"i{bits}"
        for name, by_minus_one in (("sdiv", "%negated"), ("srem", "0")):
            parts.append(
                f"""
define internal {kind} @{name}{bits}({kind} %a, {kind} %b) alwaysinline {{
  %zero = icmp eq {kind} %b, 0
  %minus = icmp eq {kind} %b, -1
  %trap = or i1 %zero, %minus
  %safe = select i1 %trap, {kind} 1, {kind} %b
  %plain = {name} {kind} %a, %safe
  %negated = sub {kind} 0, %a
  %one = select i1 %minus, {kind} {by_minus_one}, {kind} %plain
  ret {kind} %one
}}
"""
            )
        for name in ("udiv", "urem"):
            parts.append(
                f"""
define internal {kind} @{name}{bits}({kind} %a, {kind} %b) alwaysinline {{
  %zero = icmp eq {kind} %b, 0
  %safe = select i1 %zero, {kind} 1, {kind} %b
  %plain = {name} {kind} %a, %safe
  ret {kind} %plain
}}
"""
            )
    return "\n".join(parts)


def emit_widening(code: LlvmFunction, value: str, element: str) -> tuple[str, str]:
    """Widen a value to a type that LLVM computes with; return that type."""
    if element in BIT_ENCODED_FORMATS:
        value = code.let(f"call float @widen_{element}({LLVM_FLOAT_TYPES[element]} {value})")
    return value, widened_type(element)


def emit_narrowing(code: LlvmFunction, value: str, kind: str, element: str) -> str:
    target = llvm_type(element)
    if element in BIT_ENCODED_FORMATS:
        if kind == "double":
            raise UnsupportedOnCpu(f"a conversion of fp64 to {triton_type_name(element)}")
        if kind == "half":
            value = code.let(f"fpext half {value} to float")
        return code.let(f"call {target} @narrow_{element}(float {value})")
    if kind == target:
        return value
    order = list(FLOAT_SUFFIXES)
    if (kind, target) == ("double", "half"):
        raise UnsupportedOnCpu("a conversion of fp64 to fp16")
    conversion = "fpext" if order.index(kind) < order.index(target) else "fptrunc"
    return code.let(f"{conversion} {kind} {value} to {target}")
