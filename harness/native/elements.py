"""What each element-wise operation does to one lane: a table from its name to LLVM's assembly.

Numbers are computed as compiled kernels compute them. What has no entry, and what an entry does not
know to be right, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.kernels.graph import Operation
from harness.native import formats, specified
from harness.native.formats import (
    EIGHTS,
    PACKED,
    TYPES,
    Refused,
    literal,
    llvm_type,
    name_of,
    narrowed,
    size_of,
    widened,
)
from harness.native.layout import Context, Unanswered
from harness.native.text import Function

Emitter = Callable[[Function, Operation, list[str]], str]

# The table


def _element(operation: Operation) -> str:
    return operation.operands[-1].kind.element


def _no_eights(operation: Operation, what: str = "") -> None:
    element = _element(operation)
    if element in EIGHTS or (element not in TYPES and not element.startswith("i")):
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
    return code.let(
        f"{'sext' if int(source[1:]) < int(target[1:]) else 'trunc'} "
        f"{source} {given[0]} to {target}"
    )


def _bitcast(code: Function, operation: Operation, given: list[str]) -> str:
    source = llvm_type(operation.operands[0].kind.element)
    target = llvm_type(operation.result.kind.element)
    return given[0] if source == target else code.let(f"bitcast {source} {given[0]} to {target}")


def _float_to_float(code: Function, operation: Operation, given: list[str]) -> str:
    source, target = operation.operands[0].kind.element, operation.result.kind.element
    for element in (source, target):
        if element not in TYPES:
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
            answer = str(int(Unanswered.CONVERSION))
            code.store("i64", answer, code.at("%context", "i64", Context.REFUSED))
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
    ends = (
        ("maximum", "minimum") if operation.number("propagateNan") else ("maximumnum", "minimumnum")
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


# Of CUDA's libdevice: those whose result CUDA specifies to a few last places, if not exactly.
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
    if name in specified.FLOATS:
        return _float(specified.FLOATS[name])(code, operation, given)
    if name in specified.STEPS:
        done: list[str] = []
        for step in specified.STEPS[name]:
            results = {f"v{number}": result for number, result in enumerate(done)}
            done.append(code.let(step.format(*given, **results)))
        return done[-1]
    if name.removesuffix("f") == "rsqrt":
        return _rsqrt(code, operation, given)
    plain = name if name in _LIBRARY else name.removesuffix("f")
    element = _element(operation)
    if plain not in _LIBRARY or element not in ("f32", "f64"):
        raise Refused(f"libdevice's {symbol or 'function'}")
    return _call(_LIBRARY[plain])(code, operation, given)


def _assembly(code: Function, operation: Operation, given: list[str]) -> str:
    """Single instructions that PTX gives the exact result of."""
    text = operation.attributes.get("asm_string", "").strip('"').strip()
    kinds = [llvm_type(operand.kind.element) for operand in operation.operands]
    result = llvm_type(operation.result.kind.element)
    if operation.number("packed_element", 1) == 1 and len(operation.results) == 1:
        if not given and specified.WAITS.fullmatch(text):
            return "0"
        kind = {"f32": "float", "f64": "double"}
        if (found := specified.rounded(text)) is not None:
            rule, width, places = found
            if {*kinds, result} == {kind[width]} and max(places) < len(given):
                chosen = (given[place] for place in places)
                return code.let(rule.format(*chosen, t=kind[width], s=width))
        target = specified.narrowed(text)
        if target is not None and kinds in (["float"], ["i32"]) and formats.bits_of(result) == 16:
            value = given[0]
            if kinds == ["i32"]:
                value = code.let(f"bitcast i32 {value} to float")
            value = narrowed(code, value, "float", target)
            kept = TYPES[target]
            return value if kept == result else code.let(f"bitcast {kept} {value} to {result}")
    raise Refused(f"inline assembly: {text}")


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
    "tt.elementwise_inline_asm": _assembly,
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
