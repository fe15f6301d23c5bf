"""What each element-wise operation does to one lane: a table from its name to LLVM's assembly.

Numbers are computed as compiled kernels compute them. bfloat16 and the 8-bit formats are bits here:
widened to float32, where one operation on two of them is exact or rounded once more at most, and
narrowed to the nearest, ties to even; the 8-bit ones saturate, as the hardware's conversions do.
What has no entry, and what an entry does not know to be right, is refused by name.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable

from harness.kernels.graph import Kind, Operation
from harness.native.layout import Context
from harness.native.text import Function

Emitter = Callable[[Function, Operation, list[str]], str]

EIGHTS = {"f8E4M3FN": (4, 3, 7, 0x7E), "f8E5M2": (5, 2, 15, 0x7B)}
PACKED = frozenset({"bf16", *EIGHTS})
_TYPES = {"f16": "half", "f32": "float", "f64": "double", "bf16": "i16"}
_TYPES |= dict.fromkeys(EIGHTS, "i8")


class Refused(Exception):
    """There is no right answer here for what a kernel does."""


def llvm_type(element: str) -> str:
    if element.startswith("ptr<"):
        return "i64"
    if element in _TYPES:
        return _TYPES[element]
    if element[0] == "i" and element[1:].isdigit() and int(element[1:]) <= 64:
        return element
    if element == "index":
        return "i64"
    raise Refused(f"numbers of type {element}")


def stored_type(element: str) -> str:
    """A truth value takes a byte in memory."""
    return "i8" if element == "i1" else llvm_type(element)


def size_of(element: str) -> int:
    return {"half": 2, "float": 4, "double": 8}.get(kind := stored_type(element)) or (
        int(kind[1:]) // 8
    )


def name_of(element: str) -> str:
    """As Triton's language calls it."""
    known = {"f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5", "bf16": "bf16", "i1": "int1"}
    if element in known:
        return known[element]
    return ("int" if element[0] == "i" else "fp") + element.lstrip("if")


# Constants


def literal(text: str, element: str) -> str:
    """A printed number as LLVM writes it."""
    text = text.strip()
    if text in ("true", "false"):
        return "1" if text == "true" else "0"
    if not element.startswith(("f", "bf")):
        return str(int(text, 0))
    if text.startswith("0x"):
        return _of_bits(int(text, 16), element)
    return _of_bits(_bits(float(text), element), element)


def _bits(value: float, element: str) -> int:
    if element == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    if element == "f32":
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    if element == "f16":
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    if element == "bf16":
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    codes = [code for code in range(256) if _eight(code, element) == value]
    if not codes:
        raise Refused(f"a constant of {name_of(element)}: {value}")
    return codes[-1] if math.copysign(1.0, value) < 0 else codes[0]


def _eight(code: int, element: str) -> float:
    """The value of a finite number's code in one of the 8-bit formats."""
    if element not in EIGHTS:
        raise Refused(f"a constant of {element}")
    _, mantissa_bits, bias, largest = EIGHTS[element]
    size = code & 0x7F
    if size > largest:
        return math.nan
    exponent, mantissa = size >> mantissa_bits, size & ((1 << mantissa_bits) - 1)
    whole = mantissa + (1 << mantissa_bits if exponent else 0)
    value = math.ldexp(whole, max(exponent, 1) - bias - mantissa_bits)
    return -value if code & 0x80 else value


def _of_bits(bits: int, element: str) -> str:
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


def _conversions() -> str:
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
    for name, (_, mantissa, bias, largest) in EIGHTS.items():
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
def _functions() -> dict[str, str]:
    written = re.findall(
        r"define internal .*? @(\w+)\(.*?\n}\n", text := _conversions() + _divisions(), re.DOTALL
    )
    parts = re.findall(r"define internal .*?\n}\n", text, re.DOTALL)
    return dict(zip(written, parts, strict=True))


def prelude(text: str) -> str:
    """Those of the functions above that a kernel's module calls."""
    return "\n".join(part for name, part in _functions().items() if f"@{name}(" in text)


def _divisions() -> str:
    """Division in lanes that are off, too: by zero it must not stop the process."""
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


def widened(code: Function, value: str, element: str) -> tuple[str, str]:
    """A value that LLVM computes with, and its type."""
    if element in PACKED:
        return code.let(f"call float @widen_{element}({_TYPES[element]} {value})"), "float"
    return value, llvm_type(element)


def narrowed(code: Function, value: str, kind: str, element: str) -> str:
    target = llvm_type(element)
    if element in PACKED:
        if kind == "double":
            raise Refused(f"a conversion of fp64 to {name_of(element)}")
        if kind == "half":
            value = code.let(f"fpext half {value} to float")
        return code.let(f"call {target} @narrow_{element}(float {value})")
    if kind == target:
        return value
    order = ("half", "float", "double")
    if (kind, target) == ("double", "half"):
        raise Refused("a conversion of fp64 to fp16")
    way = "fpext" if order.index(kind) < order.index(target) else "fptrunc"
    return code.let(f"{way} {kind} {value} to {target}")


# The table


def _element(operation: Operation) -> str:
    return operation.operands[-1].kind.element


def _no_eights(operation: Operation, what: str = "") -> None:
    element = _element(operation)
    if element in EIGHTS or (element not in _TYPES and not element.startswith("i")):
        raise Refused(f"{what or operation.name.split('.')[1]} of {name_of(element)}")


def _integer(template: str) -> Emitter:
    """`{t}` is the type, `{b}` its bits, `{0}` and on the operands."""

    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        kind = llvm_type(_element(operation))
        return code.let(template.format(*given, t=kind, b=kind[1:]))

    return emit


def _shift(name: str) -> Emitter:
    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        kind = llvm_type(_element(operation))
        bits = int(kind[1:])
        value, amount = given
        most = code.let(f"call {kind} @llvm.umin.{kind}({kind} {amount}, {kind} {bits - 1})")
        moved = code.let(f"{name} {kind} {value}, {most}")
        if name == "ashr":
            return moved
        far = code.let(f"icmp uge {kind} {amount}, {bits}")
        return code.let(f"select i1 {far}, {kind} 0, {kind} {moved}")

    return emit


def _divide(name: str) -> Emitter:
    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        kind = llvm_type(_element(operation))
        a, b = given
        if b.isdigit() and int(b) > 0:
            return code.let(f"{name} {kind} {a}, {b}")
        if kind == "i1":
            raise Refused("a division of int1")
        return code.let(f"call {kind} @{name}{kind[1:]}({kind} {a}, {kind} {b})")

    return emit


def _float(template: str) -> Emitter:
    """On floats as wide as LLVM has them. `{t}` is the type, `{s}` its suffix."""

    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        _no_eights(operation)
        element = _element(operation)
        wide = [widened(code, value, element) for value in given]
        kind = wide[0][1]
        suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
        result = code.let(template.format(*(value for value, _ in wide), t=kind, s=suffix))
        return narrowed(code, result, kind, element)

    return emit


def _call(function: str) -> Emitter:
    """A function of C's library: in float32 for what is narrower."""

    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        _no_eights(operation)
        element = _element(operation)
        values = []
        for value in given:
            wide, kind = widened(code, value, element)
            if kind == "half":
                wide, kind = code.let(f"fpext half {wide} to float"), "float"
            values.append(f"{kind} {wide}")
        kind = values[0].split()[0]
        name = function + ("f" if kind == "float" else "")
        result = code.let(f"call {kind} @{name}({', '.join(values)})")
        return narrowed(code, result, kind, element)

    return emit


def _rsqrt(code: Function, operation: Operation, given: list[str]) -> str:
    root = _float("call {t} @llvm.sqrt.{s}({t} {0})")(code, operation, given)
    one = literal("1.0", _element(operation))
    kind = llvm_type(_element(operation))
    return code.let(f"fdiv {kind} {one}, {root}")


def _minus(code: Function, operation: Operation, given: list[str]) -> str:
    """The sign's bit, whatever the format."""
    kind = llvm_type(_element(operation))
    if kind in ("half", "float", "double"):
        return code.let(f"fneg {kind} {given[0]}")
    return code.let(f"xor {kind} {given[0]}, {1 << (int(kind[1:]) - 1)}")


def _absolute(code: Function, operation: Operation, given: list[str]) -> str:
    kind = llvm_type(_element(operation))
    if kind in ("half", "float", "double"):
        suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
        return code.let(f"call {kind} @llvm.fabs.{suffix}({kind} {given[0]})")
    return code.let(f"and {kind} {given[0]}, {(1 << (int(kind[1:]) - 1)) - 1}")


_INTEGER_TESTS = "eq ne slt sle sgt sge ult ule ugt uge".split()
_FLOAT_TESTS = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()


def _compare_integers(code: Function, operation: Operation, given: list[str]) -> str:
    test = _INTEGER_TESTS[operation.number("predicate")]
    return code.let(f"icmp {test} {llvm_type(_element(operation))} {given[0]}, {given[1]}")


def _compare_floats(code: Function, operation: Operation, given: list[str]) -> str:
    _no_eights(operation, "a comparison")
    element = _element(operation)
    test = _FLOAT_TESTS[operation.number("predicate")]
    (a, kind), (b, _) = (widened(code, value, element) for value in given)
    return code.let(f"fcmp {test} {kind} {a}, {b}")


def _select(code: Function, operation: Operation, given: list[str]) -> str:
    kind = llvm_type(_element(operation))
    return code.let(f"select i1 {given[0]}, {kind} {given[1]}, {kind} {given[2]}")


def _cast(name: str) -> Emitter:
    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        source = llvm_type(operation.operands[0].kind.element)
        target = llvm_type(operation.result.kind.element)
        if source == target:
            return given[0]
        return code.let(f"{name} {source} {given[0]} to {target}")

    return emit


def _index_cast(code: Function, operation: Operation, given: list[str]) -> str:
    source = llvm_type(operation.operands[0].kind.element)
    target = llvm_type(operation.result.kind.element)
    if source == target:
        return given[0]
    return code.let(f"{'sext' if int(source[1:]) < int(target[1:]) else 'trunc'} "
                    f"{source} {given[0]} to {target}")


def _bitcast(code: Function, operation: Operation, given: list[str]) -> str:
    source = llvm_type(operation.operands[0].kind.element)
    target = llvm_type(operation.result.kind.element)
    return given[0] if source == target else code.let(f"bitcast {source} {given[0]} to {target}")


def _float_to_float(code: Function, operation: Operation, given: list[str]) -> str:
    source, target = operation.operands[0].kind.element, operation.result.kind.element
    for element in (source, target):
        if element not in _TYPES:
            raise Refused(f"a conversion of {source} to {target}")
    names = f"{name_of(source)} to {name_of(target)}"
    if operation.name == "tt.fp_to_fp" and operation.number("rounding", 1) != 1:
        raise Refused(f"a conversion of {names} rounded toward zero")
    if "f64" in (source, target) and {source, target} & PACKED:
        raise Refused(f"a conversion of {names}")
    if (source, target) == ("f8E5M2", "bf16"):
        # Compiled, infinities become large numbers: an accident that no kernel may build on.
        size = code.let(f"and i8 {given[0]}, 127")
        with code.when(code.let(f"icmp uge i8 {size}, 124")):
            code.store("i64", "1", code.at("%context", "i64", Context.REFUSED))
    value, kind = widened(code, given[0], source)
    return narrowed(code, value, kind, target)


def _to_float(name: str) -> Emitter:
    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        source = llvm_type(operation.operands[0].kind.element)
        element = operation.result.kind.element
        target = "float" if element in PACKED else llvm_type(element)
        if element in EIGHTS:
            raise Refused(f"a conversion of {source} to {name_of(element)}")
        value = code.let(f"{name} {source} {given[0]} to {target}")
        return narrowed(code, value, target, element)

    return emit


def _to_integer(name: str) -> Emitter:
    """Toward zero; what does not fit goes to the nearest end, as on a GPU.

    NaN becomes zero, and in 64 bits the smallest number.
    """

    def emit(code: Function, operation: Operation, given: list[str]) -> str:
        value, kind = widened(code, given[0], operation.operands[0].kind.element)
        target = llvm_type(operation.result.kind.element)
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


def _clamp(code: Function, operation: Operation, given: list[str]) -> str:
    _no_eights(operation, "tl.clamp")
    element = _element(operation)
    wide = [widened(code, value, element) for value in given]
    kind = wide[0][1]
    suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
    value, low, high = (one for one, _ in wide)
    ends = ("maximum", "minimum") if operation.number("propagateNan") else (
        "maximumnum", "minimumnum"
    )
    for name, end in zip(ends, (low, high), strict=True):
        value = code.let(f"call {kind} @llvm.{name}.{suffix}({kind} {value}, {kind} {end})")
    return narrowed(code, value, kind, element)


def _add_to_pointer(code: Function, operation: Operation, given: list[str]) -> str:
    pointee = operation.result.kind.pointee
    size = 8 if pointee.startswith("ptr<") else size_of(pointee)
    kind = llvm_type(operation.operands[1].kind.element)
    offset = given[1] if kind == "i64" else code.let(f"sext {kind} {given[1]} to i64")
    moved = offset if size == 1 else code.let(f"mul i64 {offset}, {size}")
    return code.let(f"add i64 {given[0]}, {moved}")


def _high_product(code: Function, operation: Operation, given: list[str]) -> str:
    kind = llvm_type(_element(operation))
    bits = int(kind[1:])
    wide = [code.let(f"zext {kind} {value} to i{2 * bits}") for value in given]
    product = code.let(f"mul i{2 * bits} {wide[0]}, {wide[1]}")
    return code.let(
        f"trunc i{2 * bits} {code.let(f'lshr i{2 * bits} {product}, {bits}')} to {kind}"
    )


# Of CUDA's libdevice: those whose result CUDA specifies to a few units in the last place or exactly.
_LIBRARY = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log1p": "log1p", "pow": "pow",
    "expm1": "expm1", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh",
    "atan": "atan", "atan2": "atan2", "asin": "asin", "acos": "acos", "sinh": "sinh",
    "cosh": "cosh", "erf": "erf", "erfc": "erfc", "floor": "floor", "ceil": "ceil", "fabs": "fabs",
    "trunc": "trunc", "rint": "rint", "nearbyint": "nearbyint", "round": "round", "cbrt": "cbrt",
    "fma": "fma", "fmod": "fmod", "copysign": "copysign", "hypot": "hypot", "log10": "log10",
}  # fmt: skip


def _extern(code: Function, operation: Operation, given: list[str]) -> str:
    symbol = operation.attributes.get("symbol", "").strip('"')
    name = symbol.removeprefix("__nv_")
    plain = name if name in _LIBRARY else name.removesuffix("f")
    element = _element(operation)
    if plain not in _LIBRARY or element not in ("f32", "f64"):
        raise Refused(f"libdevice's {symbol or 'function'}")
    return _call(_LIBRARY[plain])(code, operation, given)


def _same(code: Function, operation: Operation, given: list[str]) -> str:
    return given[0]


TABLE: dict[str, Emitter] = {
    "arith.addi": _integer("add {t} {0}, {1}"),
    "arith.subi": _integer("sub {t} {0}, {1}"),
    "arith.muli": _integer("mul {t} {0}, {1}"),
    "arith.andi": _integer("and {t} {0}, {1}"),
    "arith.ori": _integer("or {t} {0}, {1}"),
    "arith.xori": _integer("xor {t} {0}, {1}"),
    "arith.minsi": _integer("call {t} @llvm.smin.{t}({t} {0}, {t} {1})"),
    "arith.maxsi": _integer("call {t} @llvm.smax.{t}({t} {0}, {t} {1})"),
    "arith.minui": _integer("call {t} @llvm.umin.{t}({t} {0}, {t} {1})"),
    "arith.maxui": _integer("call {t} @llvm.umax.{t}({t} {0}, {t} {1})"),
    "math.absi": _integer("call {t} @llvm.abs.{t}({t} {0}, i1 false)"),
    "math.ctpop": _integer("call {t} @llvm.ctpop.{t}({t} {0})"),
    "math.ctlz": _integer("call {t} @llvm.ctlz.{t}({t} {0}, i1 false)"),
    "math.cttz": _integer("call {t} @llvm.cttz.{t}({t} {0}, i1 false)"),
    "arith.shli": _shift("shl"),
    "arith.shrsi": _shift("ashr"),
    "arith.shrui": _shift("lshr"),
    "arith.divsi": _divide("sdiv"),
    "arith.divui": _divide("udiv"),
    "arith.remsi": _divide("srem"),
    "arith.remui": _divide("urem"),
    "arith.cmpi": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.select": _select,
    "arith.extsi": _cast("sext"),
    "arith.extui": _cast("zext"),
    "arith.trunci": _cast("trunc"),
    "arith.index_cast": _index_cast,
    "arith.addf": _float("fadd {t} {0}, {1}"),
    "arith.subf": _float("fsub {t} {0}, {1}"),
    "arith.mulf": _float("fmul {t} {0}, {1}"),
    "arith.divf": _float("fdiv {t} {0}, {1}"),
    "tt.precise_divf": _float("fdiv {t} {0}, {1}"),
    "arith.remf": _call("fmod"),
    "arith.minnumf": _float("call {t} @llvm.minimumnum.{s}({t} {0}, {t} {1})"),
    "arith.maxnumf": _float("call {t} @llvm.maximumnum.{s}({t} {0}, {t} {1})"),
    "arith.minimumf": _float("call {t} @llvm.minimum.{s}({t} {0}, {t} {1})"),
    "arith.maximumf": _float("call {t} @llvm.maximum.{s}({t} {0}, {t} {1})"),
    "arith.negf": _minus,
    "math.absf": _absolute,
    "math.fma": _float("call {t} @llvm.fma.{s}({t} {0}, {t} {1}, {t} {2})"),
    "math.sqrt": _float("call {t} @llvm.sqrt.{s}({t} {0})"),
    "tt.precise_sqrt": _float("call {t} @llvm.sqrt.{s}({t} {0})"),
    "math.rsqrt": _rsqrt,
    "math.floor": _float("call {t} @llvm.floor.{s}({t} {0})"),
    "math.ceil": _float("call {t} @llvm.ceil.{s}({t} {0})"),
    "math.exp": _call("exp"),
    "math.exp2": _call("exp2"),
    "math.log": _call("log"),
    "math.log2": _call("log2"),
    "math.sin": _call("sin"),
    "math.cos": _call("cos"),
    "math.erf": _call("erf"),
    "math.tanh": _call("tanh"),
    "tt.extern_elementwise": _extern,
    "arith.sitofp": _to_float("sitofp"),
    "arith.uitofp": _to_float("uitofp"),
    "arith.fptosi": _to_integer("fptosi"),
    "arith.fptoui": _to_integer("fptoui"),
    "arith.extf": _float_to_float,
    "arith.truncf": _float_to_float,
    "tt.fp_to_fp": _float_to_float,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
    "tt.ptr_to_int": _same,
    "tt.int_to_ptr": _same,
    "tt.addptr": _add_to_pointer,
    "tt.clampf": _clamp,
    "tt.mulhiui": _high_product,
}


def declarations(text: str) -> str:
    """The functions of C's library that a kernel calls."""
    lines = []
    for name in sorted({*_LIBRARY.values(), "fmod"}):
        many = {"fma": 3}.get(name, 2 if name in "atan2 copysign fmod hypot pow".split() else 1)
        for kind, suffix in (("float", "f"), ("double", "")):
            if f"@{name}{suffix}(" in text:
                lines.append(f"declare {kind} @{name}{suffix}({', '.join([kind] * many)})")
    return "\n".join(lines) + "\n"
