"""Functions of libdevice whose result CUDA specifies exactly.

Those are roundings to the nearest, and functions of integers and bits. Functions specified to a few
last places are in `elementwise_ops`, computed by C's library; approximations (`fast_`) are in
`approximations`, and assembly in `assembly`.
"""

from __future__ import annotations

# Floats of one width: `{t}` is the type, `{s}` its suffix, `{0}`, `{1}` … the operands.
ROUNDED_OPERATIONS = {
    "add": "fadd {t} {0}, {1}",
    "sub": "fsub {t} {0}, {1}",
    "mul": "fmul {t} {0}, {1}",
    "div": "fdiv {t} {0}, {1}",
    "fma": "call {t} @llvm.fma.{s}({t} {0}, {t} {1}, {t} {2})",
    "sqrt": "call {t} @llvm.sqrt.{s}({t} {0})",
    "rcp": "fdiv {t} 1.0, {0}",
}
MINIMUM = "call {t} @llvm.minimumnum.{s}({t} {0}, {t} {1})"
MAXIMUM = "call {t} @llvm.maximumnum.{s}({t} {0}, {t} {1})"
# libdevice calls them `__nv_fadd_rn` and `__nv_dadd_rn`, but for fused ones: `fmaf_rn`, `fma_rn`.
LIBDEVICE_FLOAT_FUNCTIONS = {
    f"{width}{name}_rn": rule for name, rule in ROUNDED_OPERATIONS.items() for width in "fd"
}
LIBDEVICE_FLOAT_FUNCTIONS |= dict.fromkeys(("fmaf_rn", "fma_rn"), ROUNDED_OPERATIONS["fma"])
LIBDEVICE_FLOAT_FUNCTIONS |= {"fminf": MINIMUM, "fmin": MINIMUM, "fmaxf": MAXIMUM, "fmax": MAXIMUM}

_INFINITY = "0x7FF0000000000000"


def _make_float_tests(kind: str, suffix: str, bits: int) -> dict[str, tuple[str, ...]]:
    size = f"call {kind} @llvm.fabs.f{bits}({kind} {{0}})"
    truth = "zext i1 {v1} to i32"
    ends = {"float": ("isnanf", "isinff", "finitef"), "double": ("isnand", "isinfd", "isfinited")}
    nan, infinite, finite = ends[kind]
    return {
        nan: (f"fcmp uno {kind} {{0}}, 0.0", "zext i1 {v0} to i32"),
        infinite: (size, f"fcmp oeq {kind} {{v0}}, {_INFINITY}", truth),
        finite: (size, f"fcmp olt {kind} {{v0}}, {_INFINITY}", truth),
        f"signbit{suffix}": (
            f"bitcast {kind} {{0}} to i{bits}",
            f"lshr i{bits} {{v0}}, {bits - 1}",
            f"trunc i{bits} {{v1}} to i32" if bits > 32 else "add i32 {v1}, 0",
        ),
    }


def _make_bit_counts(suffix: str, bits: int) -> dict[str, tuple[str, ...]]:
    def narrow_count(call: str) -> tuple[str, ...]:
        return (call, "trunc i64 {v0} to i32") if bits > 32 else (call,)

    kind = f"i{bits}"
    first = (
        f"call {kind} @llvm.cttz.{kind}({kind} {{0}}, i1 false)",
        f"add {kind} {{v0}}, 1",
        f"icmp eq {kind} {{0}}, 0",
        f"select i1 {{v2}}, {kind} 0, {kind} {{v1}}",
    )
    return {
        f"popc{suffix}": narrow_count(f"call {kind} @llvm.ctpop.{kind}({kind} {{0}})"),
        f"clz{suffix}": narrow_count(f"call {kind} @llvm.ctlz.{kind}({kind} {{0}}, i1 false)"),
        f"ffs{suffix}": (*first, "trunc i64 {v3} to i32") if bits > 32 else first,
        f"brev{suffix}": (f"call {kind} @llvm.bitreverse.{kind}({kind} {{0}})",),
    }


def _make_high_products(name: str, extend: str, bits: int) -> dict[str, tuple[str, ...]]:
    kind, wide = f"i{bits}", f"i{2 * bits}"
    return {
        name: (
            f"{extend} {kind} {{0}} to {wide}",
            f"{extend} {kind} {{1}} to {wide}",
            f"mul {wide} {{v0}}, {{v1}}",
            f"lshr {wide} {{v2}}, {bits}",
            f"trunc {wide} {{v3}} to {kind}",
        )
    }


def _make_bitcasts() -> dict[str, tuple[str, ...]]:
    names = {
        "float_as_int": ("float", "i32"), "float_as_uint": ("float", "i32"),
        "int_as_float": ("i32", "float"), "uint_as_float": ("i32", "float"),
        "double_as_longlong": ("double", "i64"), "longlong_as_double": ("i64", "double"),
    }  # fmt: skip
    return {name: (f"bitcast {a} {{0}} to {b}",) for name, (a, b) in names.items()}


# Steps one after the other: `{v0}` is the result of the first.
LIBDEVICE_STEPS = {
    **_make_float_tests("float", "f", 32),
    **_make_float_tests("double", "d", 64),
    **_make_bit_counts("", 32),
    **_make_bit_counts("ll", 64),
    **_make_high_products("mulhi", "sext", 32),
    **_make_high_products("umulhi", "zext", 32),
    **_make_high_products("mul64hi", "sext", 64),
    **_make_high_products("umul64hi", "zext", 64),
    **_make_bitcasts(),
    "abs": ("call i32 @llvm.abs.i32(i32 {0}, i1 false)",),
    "llabs": ("call i64 @llvm.abs.i64(i64 {0}, i1 false)",),
}
