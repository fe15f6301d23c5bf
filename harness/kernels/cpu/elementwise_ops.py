"""Element-wise operations on one lane: a table from an operation's name to LLVM's assembly.

Results have the bits that a compiled kernel's have on a GPU. An operation without an entry, or one
whose result is not exactly specified, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.kernels.cpu import exact_intrinsics, number_formats
from harness.kernels.cpu.abi import LaunchField, UndefinedResult
from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.cpu.number_formats import (
    BIT_ENCODED_FORMATS,
    FLOAT8_FORMATS,
    LLVM_FLOAT_TYPES,
    UnsupportedOnCpu,
    emit_narrowing,
    emit_widening,
    format_literal,
    llvm_type,
    size_of,
    triton_type_name,
)
from harness.kernels.ir.graph import IROperation

ElementEmitter = Callable[[LlvmFunction, IROperation, list[str]], str]

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
    """`{t}` is the type, `{b}` its bits, `{0}`, `{1}` … are the operands."""

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
    """On floats, widened to a type that LLVM has. `{t}` is that type, `{s}` its suffix."""

    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        _refuse_float8(operation)
        element = _get_element(operation)
        wide = [emit_widening(code, value, element) for value in operands]
        kind = wide[0][1]
        suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
        result = code.let(template.format(*(value for value, _ in wide), t=kind, s=suffix))
        return emit_narrowing(code, result, kind, element)

    return emit


def _make_libm_emitter(function: str) -> ElementEmitter:
    """A function of C's library; narrower floats are computed in float32."""

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
    root = _make_float_emitter("call {t} @llvm.sqrt.{s}({t} {0})")(code, operation, operands)
    one = format_literal("1.0", _get_element(operation))
    kind = llvm_type(_get_element(operation))
    return code.let(f"fdiv {kind} {one}, {root}")


def _emit_negation(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    """Flip the sign bit, in any format."""
    kind = llvm_type(_get_element(operation))
    if kind in ("half", "float", "double"):
        return code.let(f"fneg {kind} {operands[0]}")
    return code.let(f"xor {kind} {operands[0]}, {1 << (int(kind[1:]) - 1)}")


def _emit_absolute(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    kind = llvm_type(_get_element(operation))
    if kind in ("half", "float", "double"):
        suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
        return code.let(f"call {kind} @llvm.fabs.{suffix}({kind} {operands[0]})")
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


def _make_cast_emitter(name: str) -> ElementEmitter:
    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        source = llvm_type(operation.operands[0].type.element)
        target = llvm_type(operation.result.type.element)
        if source == target:
            return operands[0]
        return code.let(f"{name} {source} {operands[0]} to {target}")

    return emit


def _emit_index_cast(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    source = llvm_type(operation.operands[0].type.element)
    target = llvm_type(operation.result.type.element)
    if source == target:
        return operands[0]
    return code.let(
        f"{'sext' if int(source[1:]) < int(target[1:]) else 'trunc'} "
        f"{source} {operands[0]} to {target}"
    )


def _emit_bitcast(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    source = llvm_type(operation.operands[0].type.element)
    target = llvm_type(operation.result.type.element)
    return (
        operands[0] if source == target else code.let(f"bitcast {source} {operands[0]} to {target}")
    )


def _emit_float_conversion(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
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


def _make_int_to_float_emitter(name: str) -> ElementEmitter:
    def emit(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
        source = llvm_type(operation.operands[0].type.element)
        element = operation.result.type.element
        target = "float" if element in BIT_ENCODED_FORMATS else llvm_type(element)
        if element in FLOAT8_FORMATS:
            raise UnsupportedOnCpu(f"a conversion of {source} to {triton_type_name(element)}")
        value = code.let(f"{name} {source} {operands[0]} to {target}")
        return emit_narrowing(code, value, target, element)

    return emit


def _make_float_to_int_emitter(name: str) -> ElementEmitter:
    """Toward zero; a number that does not fit becomes the nearest one that does, as on a GPU.

    NaN becomes zero, and in 64 bits the smallest number.
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


def _emit_clamp(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    _refuse_float8(operation, "tl.clamp")
    element = _get_element(operation)
    wide = [emit_widening(code, value, element) for value in operands]
    kind = wide[0][1]
    suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
    value, low, high = (number for number, _ in wide)
    ends = (
        ("maximum", "minimum")
        if operation.get_int("propagateNan")
        else ("maximumnum", "minimumnum")
    )
    for name, end in zip(ends, (low, high), strict=True):
        value = code.let(f"call {kind} @llvm.{name}.{suffix}({kind} {value}, {kind} {end})")
    return emit_narrowing(code, value, kind, element)


def _emit_pointer_addition(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    pointee = operation.result.type.pointee
    size = 8 if pointee.startswith("ptr<") else size_of(pointee)
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
_LIBDEVICE_FUNCTIONS = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log1p": "log1p", "pow": "pow",
    "expm1": "expm1", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh",
    "atan": "atan", "atan2": "atan2", "asin": "asin", "acos": "acos", "sinh": "sinh",
    "cosh": "cosh", "erf": "erf", "erfc": "erfc", "floor": "floor", "ceil": "ceil", "fabs": "fabs",
    "trunc": "trunc", "rint": "rint", "nearbyint": "nearbyint", "round": "round", "cbrt": "cbrt",
    "fma": "fma", "fmod": "fmod", "copysign": "copysign", "hypot": "hypot", "log10": "log10",
}  # fmt: skip


def _emit_libdevice_call(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    symbol = operation.attributes.get("symbol", "").strip('"')
    name = symbol.removeprefix("__nv_")
    if name in exact_intrinsics.LIBDEVICE_FLOAT_FUNCTIONS:
        return _make_float_emitter(exact_intrinsics.LIBDEVICE_FLOAT_FUNCTIONS[name])(
            code, operation, operands
        )
    if name in exact_intrinsics.LIBDEVICE_STEPS:
        done: list[str] = []
        for step in exact_intrinsics.LIBDEVICE_STEPS[name]:
            results = {f"v{number}": result for number, result in enumerate(done)}
            done.append(code.let(step.format(*operands, **results)))
        return done[-1]
    if name.removesuffix("f") == "rsqrt":
        return _emit_rsqrt(code, operation, operands)
    plain = name if name in _LIBDEVICE_FUNCTIONS else name.removesuffix("f")
    element = _get_element(operation)
    if plain not in _LIBDEVICE_FUNCTIONS or element not in ("f32", "f64"):
        raise UnsupportedOnCpu(f"libdevice's {symbol or 'function'}")
    return _make_libm_emitter(_LIBDEVICE_FUNCTIONS[plain])(code, operation, operands)


def _emit_inline_assembly(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    """Single PTX instructions whose result is exactly specified."""
    text = operation.attributes.get("asm_string", "").strip('"').strip()
    kinds = [llvm_type(operand.type.element) for operand in operation.operands]
    result = llvm_type(operation.result.type.element)
    if operation.get_int("packed_element", 1) == 1 and len(operation.results) == 1:
        if not operands and exact_intrinsics.LAUNCH_DEPENDENCY_PATTERN.fullmatch(text):
            return "0"
        kind = {"f32": "float", "f64": "double"}
        if (rounded := exact_intrinsics.parse_rounded_instruction(text)) is not None:
            rule, width, places = rounded
            if {*kinds, result} == {kind[width]} and max(places) < len(operands):
                chosen = (operands[place] for place in places)
                return code.let(rule.format(*chosen, t=kind[width], s=width))
        target = exact_intrinsics.parse_narrowing_instruction(text)
        if (
            target is not None
            and kinds in (["float"], ["i32"])
            and number_formats.llvm_type_bits(result) == 16
        ):
            value = operands[0]
            if kinds == ["i32"]:
                value = code.let(f"bitcast i32 {value} to float")
            value = emit_narrowing(code, value, "float", target)
            narrow_type = LLVM_FLOAT_TYPES[target]
            return (
                value
                if narrow_type == result
                else code.let(f"bitcast {narrow_type} {value} to {result}")
            )
    raise UnsupportedOnCpu(f"inline assembly: {text}")


def _emit_unchanged(code: LlvmFunction, operation: IROperation, operands: list[str]) -> str:
    return operands[0]


ELEMENT_EMITTERS: dict[str, ElementEmitter] = {
    "arith.addi": _make_integer_emitter("add {t} {0}, {1}"),
    "arith.subi": _make_integer_emitter("sub {t} {0}, {1}"),
    "arith.muli": _make_integer_emitter("mul {t} {0}, {1}"),
    "arith.andi": _make_integer_emitter("and {t} {0}, {1}"),
    "arith.ori": _make_integer_emitter("or {t} {0}, {1}"),
    "arith.xori": _make_integer_emitter("xor {t} {0}, {1}"),
    "arith.minsi": _make_integer_emitter("call {t} @llvm.smin.{t}({t} {0}, {t} {1})"),
    "arith.maxsi": _make_integer_emitter("call {t} @llvm.smax.{t}({t} {0}, {t} {1})"),
    "arith.minui": _make_integer_emitter("call {t} @llvm.umin.{t}({t} {0}, {t} {1})"),
    "arith.maxui": _make_integer_emitter("call {t} @llvm.umax.{t}({t} {0}, {t} {1})"),
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
    "arith.extsi": _make_cast_emitter("sext"),
    "arith.extui": _make_cast_emitter("zext"),
    "arith.trunci": _make_cast_emitter("trunc"),
    "arith.index_cast": _emit_index_cast,
    "arith.addf": _make_float_emitter("fadd {t} {0}, {1}"),
    "arith.subf": _make_float_emitter("fsub {t} {0}, {1}"),
    "arith.mulf": _make_float_emitter("fmul {t} {0}, {1}"),
    "arith.divf": _make_float_emitter("fdiv {t} {0}, {1}"),
    "tt.precise_divf": _make_float_emitter("fdiv {t} {0}, {1}"),
    "arith.remf": _make_libm_emitter("fmod"),
    "arith.minnumf": _make_float_emitter("call {t} @llvm.minimumnum.{s}({t} {0}, {t} {1})"),
    "arith.maxnumf": _make_float_emitter("call {t} @llvm.maximumnum.{s}({t} {0}, {t} {1})"),
    "arith.minimumf": _make_float_emitter("call {t} @llvm.minimum.{s}({t} {0}, {t} {1})"),
    "arith.maximumf": _make_float_emitter("call {t} @llvm.maximum.{s}({t} {0}, {t} {1})"),
    "arith.negf": _emit_negation,
    "math.absf": _emit_absolute,
    "math.fma": _make_float_emitter("call {t} @llvm.fma.{s}({t} {0}, {t} {1}, {t} {2})"),
    "math.sqrt": _make_float_emitter("call {t} @llvm.sqrt.{s}({t} {0})"),
    "tt.precise_sqrt": _make_float_emitter("call {t} @llvm.sqrt.{s}({t} {0})"),
    "math.rsqrt": _emit_rsqrt,
    "math.floor": _make_float_emitter("call {t} @llvm.floor.{s}({t} {0})"),
    "math.ceil": _make_float_emitter("call {t} @llvm.ceil.{s}({t} {0})"),
    "math.exp": _make_libm_emitter("exp"),
    "math.exp2": _make_libm_emitter("exp2"),
    "math.log": _make_libm_emitter("log"),
    "math.log2": _make_libm_emitter("log2"),
    "math.sin": _make_libm_emitter("sin"),
    "math.cos": _make_libm_emitter("cos"),
    "math.erf": _make_libm_emitter("erf"),
    "math.tanh": _make_libm_emitter("tanh"),
    "tt.extern_elementwise": _emit_libdevice_call,
    "tt.elementwise_inline_asm": _emit_inline_assembly,
    "arith.sitofp": _make_int_to_float_emitter("sitofp"),
    "arith.uitofp": _make_int_to_float_emitter("uitofp"),
    "arith.fptosi": _make_float_to_int_emitter("fptosi"),
    "arith.fptoui": _make_float_to_int_emitter("fptoui"),
    "arith.extf": _emit_float_conversion,
    "arith.truncf": _emit_float_conversion,
    "tt.fp_to_fp": _emit_float_conversion,
    "arith.bitcast": _emit_bitcast,
    "tt.bitcast": _emit_bitcast,
    "tt.ptr_to_int": _emit_unchanged,
    "tt.int_to_ptr": _emit_unchanged,
    "tt.addptr": _emit_pointer_addition,
    "tt.clampf": _emit_clamp,
    "tt.mulhiui": _emit_high_product,
}


def declare_libm_functions(text: str) -> str:
    """Declare the functions of C's library that a kernel calls."""
    lines = []
    for name in sorted({*_LIBDEVICE_FUNCTIONS.values(), "fmod"}):
        many = {"fma": 3}.get(name, 2 if name in "atan2 copysign fmod hypot pow".split() else 1)
        for kind, suffix in (("float", "f"), ("double", "")):
            if f"@{name}{suffix}(" in text:
                lines.append(f"declare {kind} @{name}{suffix}({', '.join([kind] * many)})")
    return "\n".join(lines) + "\n"
