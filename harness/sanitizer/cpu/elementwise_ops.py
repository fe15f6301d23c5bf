"""Element-wise operations on one lane: a table from an operation's name to LLVM's assembly.

Results have the bits that a compiled kernel's have on a GPU. An operation without an entry, or one
whose result is not exactly specified, is refused by name.
"""

from __future__ import annotations

from harness.sanitizer.cpu import (
    approximations,
    conversion_ops,
    exact_intrinsics,
)
from harness.sanitizer.cpu.conversion_ops import ElementEmitter
from harness.sanitizer.cpu.exact_intrinsics import ROUNDED_OPERATIONS
from harness.sanitizer.ir.graph import IROperation
from harness.sanitizer.llvm.number_formats import (
    FLOAT8_FORMATS,
    FLOAT_SUFFIXES,
    LLVM_FLOAT_TYPES,
    UnsupportedOnCpu,
    emit_narrowing,
    emit_widening,
    format_literal,
    llvm_type,
    size_of,
    triton_type_name,
)
from harness.sanitizer.llvm.text import LlvmFunction

# The table


def _get_element(operation: IROperation) -> str:
    return operation.operands[-1].type.element


def _refuse_float8(operation: IROperation, description: str = "") -> None:
    element = _get_element(operation)
    if element in FLOAT8_FORMATS or (
        element not in LLVM_FLOAT_TYPES and not element.startswith("i")
    ):
        raise UnsupportedOnCpu(
            f"{description or operation.name.split('.')[1]} of {triton_type_name(element)}"
        )


def _make_integer_emitter(template: str) -> ElementEmitter:
    """Make an emitter: `{t}` is the type, `{b}` its bits, `{0}`, `{1}` … are the operands."""

    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        kind = llvm_type(_get_element(operation))
        return code.let(template.format(*operands, t=kind, b=kind[1:]))

    return emit


def _make_shift_emitter(name: str) -> ElementEmitter:
    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        kind = llvm_type(_get_element(operation))
        bits = int(kind[1:])
        value, amount = operands
        most = code.let(f"call {kind} @llvm.umin.{kind}({kind} {amount}, {kind} {bits - 1})")
        moved = code.let(f"{name} {kind} {value}, {most}")
        if name == "ashr":
            return moved
        far = code.let(f"icmp uge {kind} {amount}, {bits}")
        return code.let(f"select i1 {far}, {kind} 0, {kind} {moved}")

    return emit


def _make_division_emitter(name: str) -> ElementEmitter:
    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        kind = llvm_type(_get_element(operation))
        a, b = operands
        if b.isdigit() and int(b) > 0:
            return code.let(f"{name} {kind} {a}, {b}")
        if kind == "i1":
            raise UnsupportedOnCpu("a division of int1")
        return code.let(f"call {kind} @{name}{kind[1:]}({kind} {a}, {kind} {b})")

    return emit


def _make_float_emitter(template: str) -> ElementEmitter:
    """Make an emitter for floats, widened to a type `{t}` of LLVM with the suffix `{s}`."""

    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        _refuse_float8(operation)
        element = _get_element(operation)
        wide = [emit_widening(code, value, element) for value in operands]
        kind = wide[0][1]
        values = (value for value, _ in wide)
        result = code.let(template.format(*values, t=kind, s=FLOAT_SUFFIXES[kind]))
        return emit_narrowing(code, result, kind, element)

    return emit


def _make_libm_emitter(function: str) -> ElementEmitter:
    """Make an emitter of a function of C's library; narrower floats are computed in float32."""

    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        _refuse_float8(operation)
        element = _get_element(operation)
        values = []
        for value in operands:
            wide, kind = emit_widening(code, value, element)
            if kind == "half":
                wide, kind = code.let(f"fpext half {wide} to float"), "float"
            values.append(f"{kind} {wide}")
        kind = values[0].split()[0]
        name = function + ("f" if kind == "float" else "")
        result = code.let(f"call {kind} @{name}({', '.join(values)})")
        return emit_narrowing(code, result, kind, element)

    return emit


def _emit_rsqrt(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    root = _make_float_emitter(ROUNDED_OPERATIONS["sqrt"])(code, operation, operands)
    one = format_literal("1.0", _get_element(operation))
    kind = llvm_type(_get_element(operation))
    return code.let(f"fdiv {kind} {one}, {root}")


def _emit_negation(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    """Flip the sign bit, in any format."""
    kind = llvm_type(_get_element(operation))
    if kind in FLOAT_SUFFIXES:
        return code.let(f"fneg {kind} {operands[0]}")
    return code.let(f"xor {kind} {operands[0]}, {1 << (int(kind[1:]) - 1)}")


def _emit_absolute(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    kind = llvm_type(_get_element(operation))
    if kind in FLOAT_SUFFIXES:
        return code.let(f"call {kind} @llvm.fabs.{FLOAT_SUFFIXES[kind]}({kind} {operands[0]})")
    return code.let(f"and {kind} {operands[0]}, {(1 << (int(kind[1:]) - 1)) - 1}")


_INTEGER_PREDICATES = "eq ne slt sle sgt sge ult ule ugt uge".split()
_FLOAT_PREDICATES = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()


def _emit_integer_comparison(
    code: LlvmFunction, operation: IROperation, operands: list[str]
) -> str:
    test = _INTEGER_PREDICATES[operation.get_int("predicate")]
    return code.let(
        f"icmp {test} {llvm_type(_get_element(operation))} {operands[0]}, {operands[1]}"
    )


def _emit_float_comparison(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    _refuse_float8(operation, "a comparison")
    element = _get_element(operation)
    test = _FLOAT_PREDICATES[operation.get_int("predicate")]
    (a, kind), (b, _) = (emit_widening(code, value, element) for value in operands)
    return code.let(f"fcmp {test} {kind} {a}, {b}")


def _emit_select(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    kind = llvm_type(_get_element(operation))
    return code.let(f"select i1 {operands[0]}, {kind} {operands[1]}, {kind} {operands[2]}")


def _emit_clamp(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    _refuse_float8(operation, "tl.clamp")
    element = _get_element(operation)
    wide = [emit_widening(code, value, element) for value in operands]
    kind = wide[0][1]
    suffix = FLOAT_SUFFIXES[kind]
    value, low, high = (number for number, _ in wide)
    form = "" if operation.get_int("propagateNan") else "num"
    for name, end in (("maximum", low), ("minimum", high)):
        call = f"@llvm.{name}{form}.{suffix}({kind} {value}, {kind} {end})"
        value = code.let(f"call {kind} {call}")
    return emit_narrowing(code, value, kind, element)


def _emit_pointer_addition(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    size = size_of(operation.result.type.pointee)
    kind = llvm_type(operation.operands[1].type.element)
    offset = operands[1] if kind == "i64" else code.let(f"sext {kind} {operands[1]} to i64")
    moved = offset if size == 1 else code.let(f"mul i64 {offset}, {size}")
    return code.let(f"add i64 {operands[0]}, {moved}")


def _emit_high_product(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    kind = llvm_type(_get_element(operation))
    bits = int(kind[1:])
    wide = [code.let(f"zext {kind} {value} to i{2 * bits}") for value in operands]
    product = code.let(f"mul i{2 * bits} {wide[0]}, {wide[1]}")
    return code.let(
        f"trunc i{2 * bits} {code.let(f'lshr i{2 * bits} {product}, {bits}')} to {kind}"
    )


# Functions of libdevice whose result CUDA specifies exactly or to a few last places.
_LIBDEVICE_FUNCTIONS = frozenset(
    (
        "exp exp2 log log2 log1p pow expm1 sqrt sin cos tan tanh atan atan2 asin acos sinh "
        "cosh erf erfc floor ceil fabs trunc rint nearbyint round cbrt fma fmod copysign "
        "hypot log10 exp10 asinh acosh atanh tgamma lgamma logb fdim remainder nextafter "
        "j0 j1 y0 y1 "
    ).split()
)

_BINARY_FUNCTIONS = frozenset("atan2 copysign fmod hypot pow fdim remainder nextafter".split())


def _emit_libdevice_call(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    symbol = operation.attributes.get("symbol", "").strip('"')
    name = symbol.removeprefix("__nv_")
    if name in exact_intrinsics.LIBDEVICE_FLOAT_FUNCTIONS:
        return _make_float_emitter(exact_intrinsics.LIBDEVICE_FLOAT_FUNCTIONS[name])(
            code, operation, operands
        )
    if name in exact_intrinsics.LIBDEVICE_STEPS:
        return code.let_steps(exact_intrinsics.LIBDEVICE_STEPS[name], operands)
    if name.removesuffix("f") == "rsqrt":
        return _emit_rsqrt(code, operation, operands)
    if name in approximations.FAST_FUNCTIONS:
        rule = approximations.FAST_FUNCTIONS[name]
        return approximations.emit_approximation(code, rule, operands)
    plain = name if name in _LIBDEVICE_FUNCTIONS else name.removesuffix("f")
    element = _get_element(operation)
    if plain not in _LIBDEVICE_FUNCTIONS or element not in ("f32", "f64"):
        raise UnsupportedOnCpu(f"libdevice's {symbol or 'function'}")
    return _make_libm_emitter(plain)(code, operation, operands)


def _emit_unchanged(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    return operands[0]


_INTEGER_OPERATIONS = "add sub mul and or xor"
_INTEGER_EXTREMA = {"minsi": "smin", "maxsi": "smax", "minui": "umin", "maxui": "umax"}
_FLOAT_EXTREMA = {
    "minnumf": "minimumnum", "maxnumf": "maximumnum", "minimumf": "minimum", "maximumf": "maximum",
}  # fmt: skip
_BINARY_CALL = "call {{t}} @llvm.{name}.{suffix}({{t}} {{0}}, {{t}} {{1}})"

ELEMENT_EMITTERS: dict[str, ElementEmitter] = {
    **{
        f"arith.{name}i": _make_integer_emitter(f"{name} {{t}} {{0}}, {{1}}")
        for name in _INTEGER_OPERATIONS.split()
    },
    **{
        f"arith.{name}": _make_integer_emitter(_BINARY_CALL.format(name=function, suffix="{t}"))
        for name, function in _INTEGER_EXTREMA.items()
    },
    "math.absi": _make_integer_emitter("call {t} @llvm.abs.{t}({t} {0}, i1 false)"),
    "math.ctpop": _make_integer_emitter("call {t} @llvm.ctpop.{t}({t} {0})"),
    "math.ctlz": _make_integer_emitter("call {t} @llvm.ctlz.{t}({t} {0}, i1 false)"),
    "math.cttz": _make_integer_emitter("call {t} @llvm.cttz.{t}({t} {0}, i1 false)"),
    "arith.shli": _make_shift_emitter("shl"),
    "arith.shrsi": _make_shift_emitter("ashr"),
    "arith.shrui": _make_shift_emitter("lshr"),
    "arith.divsi": _make_division_emitter("sdiv"),
    "arith.divui": _make_division_emitter("udiv"),
    "arith.remsi": _make_division_emitter("srem"),
    "arith.remui": _make_division_emitter("urem"),
    "arith.cmpi": _emit_integer_comparison,
    "arith.cmpf": _emit_float_comparison,
    "arith.select": _emit_select,
    "arith.extsi": conversion_ops.make_cast_emitter("sext"),
    "arith.extui": conversion_ops.make_cast_emitter("zext"),
    "arith.trunci": conversion_ops.make_cast_emitter("trunc"),
    "arith.index_cast": conversion_ops.emit_index_cast,
    **{
        f"arith.{name}f": _make_float_emitter(ROUNDED_OPERATIONS[name])
        for name in ("add", "sub", "mul", "div")
    },
    **{
        f"arith.{name}": _make_float_emitter(_BINARY_CALL.format(name=function, suffix="{s}"))
        for name, function in _FLOAT_EXTREMA.items()
    },
    **{
        f"math.{name}": _make_libm_emitter(name)
        for name in ("exp", "exp2", "log", "log2", "sin", "cos", "erf", "tanh")
    },
    "arith.remf": _make_libm_emitter("fmod"),
    "arith.negf": _emit_negation,
    "math.absf": _emit_absolute,
    "math.fma": _make_float_emitter(ROUNDED_OPERATIONS["fma"]),
    "tt.precise_divf": _make_float_emitter(ROUNDED_OPERATIONS["div"]),
    "math.sqrt": _make_float_emitter(ROUNDED_OPERATIONS["sqrt"]),
    "tt.precise_sqrt": _make_float_emitter(ROUNDED_OPERATIONS["sqrt"]),
    "math.rsqrt": _emit_rsqrt,
    "math.floor": _make_float_emitter("call {t} @llvm.floor.{s}({t} {0})"),
    "math.ceil": _make_float_emitter("call {t} @llvm.ceil.{s}({t} {0})"),
    "tt.extern_elementwise": _emit_libdevice_call,
    "arith.sitofp": conversion_ops.make_int_to_float_emitter("sitofp"),
    "arith.uitofp": conversion_ops.make_int_to_float_emitter("uitofp"),
    "arith.fptosi": conversion_ops.make_float_to_int_emitter("fptosi"),
    "arith.fptoui": conversion_ops.make_float_to_int_emitter("fptoui"),
    "arith.extf": conversion_ops.emit_float_conversion,
    "arith.truncf": conversion_ops.emit_float_conversion,
    "tt.fp_to_fp": conversion_ops.emit_float_conversion,
    "arith.bitcast": conversion_ops.make_cast_emitter("bitcast"),
    "tt.bitcast": conversion_ops.make_cast_emitter("bitcast"),
    "tt.ptr_to_int": _emit_unchanged,
    "tt.int_to_ptr": _emit_unchanged,
    "tt.addptr": _emit_pointer_addition,
    "tt.clampf": _emit_clamp,
    "tt.mulhiui": _emit_high_product,
}


def list_approximations(operation: IROperation) -> list[str]:
    """List the parts of an operation whose result CUDA specifies by a bound."""
    symbol = operation.attributes.get("symbol", "").strip('"').removeprefix("__nv_")
    return [f"libdevice's {symbol}"] if symbol in approximations.FAST_FUNCTIONS else []


def declare_libm_functions(text: str) -> str:
    """Declare the functions of C's library that a kernel calls."""
    lines = []
    for name in sorted(_LIBDEVICE_FUNCTIONS):
        many = 3 if name == "fma" else 2 if name in _BINARY_FUNCTIONS else 1
        for kind, suffix in (("float", "f"), ("double", "")):
            if f"@{name}{suffix}(" in text:
                lines.append(f"declare {kind} @{name}{suffix}({', '.join([kind] * many)})")
    return "\n".join(lines) + "\n"
