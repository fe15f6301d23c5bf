"""Instructions on floating-point numbers, and conversions.

Results are rounded once, as PTX specifies; float16 and bfloat16 are computed in float32, which
holds their sums and products. Approximations (`.approx`) are specified to some last places: here
they are the float nearest to the true value.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.llvm.number_formats import PTX_COMPARISONS
from harness.sanitizer.ptx.instructions import Instruction, is_float_type
from harness.sanitizer.ptx.parser import bits_of_type
from harness.sanitizer.ptx.thread_code import LLVM_FLOATS, ThreadCode

FloatEmitter = Callable[[ThreadCode, Instruction, str, list[str]], str]


def emit_float(code: ThreadCode, instruction: Instruction, emitter: FloatEmitter) -> None:
    """Emit an instruction on floats; one on pairs (`f16x2`) as two on halves."""
    kind = instruction.type
    if kind.endswith("x2"):
        _emit_pairs(code, instruction, kind[:-2], emitter)
        return
    operands = [_get_operand(code, value, kind, instruction) for value in instruction.operands]
    result = emitter(code, instruction, kind, operands)
    result = _finish_result(code, result, kind, instruction, emitter)
    code.set(instruction.results[0], result, bits_of_type(kind))


def _emit_pairs(
    code: ThreadCode, instruction: Instruction, kind: str, emitter: FloatEmitter
) -> None:
    pairs = [code.split_halves(code.get(value, 32)) for value in instruction.operands]
    results = []
    for halves in zip(*pairs, strict=True):
        values = [code.bits_to_float(half, kind) for half in halves]
        result = emitter(code, instruction, kind, values)
        results.append(_finish_result(code, result, kind, instruction, emitter))
    code.set(instruction.results[0], code.join_halves(results), 32)


def _get_operand(code: ThreadCode, value: IRValue, kind: str, instruction: Instruction) -> str:
    name = code.get_float(value, kind)
    if kind == "f32" and instruction.has("ftz"):
        name = code.let(f"call float @flush(float {name})")
    return name


def _finish_result(
    code: ThreadCode, name: str, kind: str, instruction: Instruction, emitter: FloatEmitter
) -> str:
    """Apply `.sat`, `.ftz` and the form of NaN, and return the bits."""
    if instruction.has("sat"):
        name = saturate_float(code, name, LLVM_FLOATS[kind])
    if instruction.has("relu"):
        raise instruction.refuse()
    if kind == "f32":
        if instruction.has("ftz"):
            name = code.let(f"call float @flush(float {name})")
        if emitter is not emit_sign:
            name = code.let(f"call float @quiet(float {name})")
    return code.float_to_bits(name, kind)


def saturate_float(code: ThreadCode, name: str, llvm: str) -> str:
    """Limit a float to 0 and 1; NaN becomes 0."""
    low = code.call_intrinsic("maximumnum", llvm, name, "0.0")
    return code.call_intrinsic("minimumnum", llvm, low, "1.0")


_DIRECTIONS = {"rz": 0, "rm": 1, "rp": 2}


def find_direction(instruction: Instruction, kind: str) -> int | None:
    """Return the direction that a result is rounded in; None is to the nearest."""
    mode = instruction.find(*_DIRECTIONS)
    if mode is None:
        return None
    if kind != "f32":
        raise instruction.refuse("only rounding to the nearest")
    return _DIRECTIONS[mode]


def _widen_values(code: ThreadCode, values: list[str], llvm: str) -> list[str]:
    return [code.let(f"fpext {llvm} {value} to double") for value in values]


def make_arithmetic_emitter(verb: str) -> FloatEmitter:
    def emit(code: ThreadCode, instruction: Instruction, kind: str, values: list[str]) -> str:
        direction = find_direction(instruction, kind)
        left, right = values
        if direction is not None:
            return _emit_directed(code, verb, direction, _widen_values(code, values, "float"))
        if kind == "f16":  # one rounding: float32 holds more than twice the bits
            wide = [code.let(f"fpext half {value} to float") for value in values]
            result = code.let(f"{verb} float {wide[0]}, {wide[1]}")
            return code.let(f"fptrunc float {result} to half")
        return code.let(f"{verb} {LLVM_FLOATS[kind]} {left}, {right}")

    return emit


def round_directed(code: ThreadCode, value: str, direction: int, rest: str = "0.0") -> str:
    """Round a float64 to float32; `rest` is what it lacks of the true value."""
    return code.let(f"call float @round_directed(double {value}, double {rest}, i32 {direction})")


def _emit_directed(code: ThreadCode, verb: str, direction: int, wide: list[str]) -> str:
    left, right = wide
    if verb == "fmul":  # exact in float64
        return round_directed(code, code.let(f"fmul double {left}, {right}"), direction)
    if verb == "fsub":
        right = code.let(f"fneg double {right}")
    return code.let(f"call float @sum_directed(double {left}, double {right}, i32 {direction})")


def emit_fma(code: ThreadCode, instruction: Instruction, kind: str, values: list[str]) -> str:
    direction = find_direction(instruction, kind)
    llvm = LLVM_FLOATS[kind]
    if direction is None and kind in ("f32", "f64"):
        return code.call_intrinsic("fma", llvm, *values)
    wide = _widen_values(code, values, llvm)
    product = code.let(f"fmul double {wide[0]}, {wide[1]}")
    if direction is not None:
        call = f"call float @sum_directed(double {product}, double {wide[2]}, i32 {direction})"
        return code.let(call)
    result = code.let(
        f"call float @narrow_odd(double {code.let(f'fadd double {product}, {wide[2]}')})"
    )
    return result if kind == "bf16" else code.let(f"fptrunc float {result} to half")


def emit_division(code: ThreadCode, instruction: Instruction, kind: str, values: list[str]) -> str:
    llvm = LLVM_FLOATS[kind]
    direction = find_direction(instruction, kind)
    dividend, divisor = values if instruction.opcode == "div" else ("1.0", *values)
    if direction is None:
        quotient = code.let(f"fdiv {llvm} {dividend}, {divisor}")
        if instruction.opcode == "div" and instruction.has("approx"):
            return _flush_quotient(code, quotient, dividend, divisor)
        return quotient
    left, right = _widen_values(code, [dividend, divisor], llvm)
    quotient = code.let(f"fdiv double {left}, {right}")
    minus = code.let(f"fneg double {quotient}")
    rest = code.call_intrinsic("fma", "double", minus, right, left)
    rest = code.let(f"fmul double {rest}, {right}")  # of the quotient's own sign
    return round_directed(code, quotient, direction, rest)


def _flush_quotient(code: ThreadCode, quotient: str, dividend: str, divisor: str) -> str:
    """Return what `div.approx` gives by a finite divisor above 2**126: nothing is left."""
    size = code.call_intrinsic("fabs", "float", divisor)
    above = code.let(f"fcmp ogt float {size}, 0x47D0000000000000")
    finite = code.let(f"fcmp one float {size}, 0x7FF0000000000000")
    zero = code.let(f"fmul float {dividend}, 0.0")
    flushed = code.let(f"and i1 {above}, {finite}")
    return code.let(f"select i1 {flushed}, float {zero}, float {quotient}")


def emit_root(code: ThreadCode, instruction: Instruction, kind: str, values: list[str]) -> str:
    llvm = LLVM_FLOATS[kind]
    direction = find_direction(instruction, kind)
    if direction is not None:
        [wide] = _widen_values(code, values, llvm)
        root = code.call_intrinsic("sqrt", "double", wide)
        minus = code.let(f"fneg double {root}")
        rest = code.call_intrinsic("fma", "double", minus, root, wide)
        return round_directed(code, root, direction, rest)
    if instruction.opcode == "sqrt":
        return code.call_intrinsic("sqrt", llvm, values[0])
    wide = values[0] if kind == "f64" else code.let(f"fpext {llvm} {values[0]} to double")
    root = code.call_intrinsic("sqrt", "double", wide)
    result = code.let(f"fdiv double 1.0, {root}")
    return result if kind == "f64" else code.let(f"fptrunc double {result} to {llvm}")


def make_library_emitter(function: str) -> FloatEmitter:
    def emit(code: ThreadCode, instruction: Instruction, kind: str, values: list[str]) -> str:
        llvm = LLVM_FLOATS[kind]
        wide = values[0] if kind == "f64" else code.let(f"fpext {llvm} {values[0]} to double")
        result = code.let(f"call double @{function}(double {wide})")
        if kind in ("f16", "bf16"):
            result = code.let(f"call float @narrow_odd(double {result})")
            return result if kind == "bf16" else code.let(f"fptrunc float {result} to half")
        return result if kind == "f64" else code.let(f"fptrunc double {result} to {llvm}")

    return emit


def emit_minimum(code: ThreadCode, instruction: Instruction, kind: str, values: list[str]) -> str:
    if instruction.has("xorsign") or len(values) != 2:
        raise instruction.refuse()
    name = f"{instruction.opcode}imum{'' if instruction.has('NaN') else 'num'}"
    return code.call_intrinsic(name, LLVM_FLOATS[kind], *values)


def emit_sign(code: ThreadCode, instruction: Instruction, kind: str, values: list[str]) -> str:
    llvm = LLVM_FLOATS[kind]
    if instruction.opcode == "neg":
        return code.let(f"fneg {llvm} {values[0]}")
    if instruction.opcode == "abs":
        return code.call_intrinsic("fabs", llvm, *values)
    return code.call_intrinsic("copysign", llvm, values[1], values[0])  # PTX has the sign first


# Comparisons

_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def emit_comparison(code: ThreadCode, instruction: Instruction) -> None:
    """`setp` and `set`: compare, combine with a predicate, give one or two results."""
    word = instruction.modifiers[0]
    kind = instruction.type
    if kind.endswith("x2"):
        _emit_pair_comparison(code, instruction, word, kind[:-2])
        return
    if is_float_type(kind):
        left, right = (
            _get_operand(code, value, kind, instruction) for value in instruction.operands[:2]
        )
        truth = code.let(f"fcmp {PTX_COMPARISONS[word]} {LLVM_FLOATS[kind]} {left}, {right}")
    else:
        bits = bits_of_type(kind)
        left, right = (code.get(value, bits) for value in instruction.operands[:2])
        order = _UNSIGNED_NAMES.get(word, word)
        if order not in ("eq", "ne"):
            unsigned = kind[0] == "u" or word in _UNSIGNED_NAMES or kind[0] == "b"
            order = f"{'u' if unsigned else 's'}{order}"
        truth = code.let(f"icmp {order} i{bits} {left}, {right}")
    combine = instruction.find("and", "or", "xor")
    negated = code.let(f"xor i1 {truth}, true") if len(instruction.results) > 1 else ""
    if combine is not None:
        other = code.get(instruction.operands[2], 1)
        truth = code.let(f"{combine} i1 {truth}, {other}")
        if negated:
            negated = code.let(f"{combine} i1 {negated}, {other}")
    if instruction.opcode == "set":
        target = next(
            modifier for modifier in instruction.modifiers[1:] if modifier in ("u32", "s32", "f32")
        )
        is_float = target == "f32"
        result = (
            f"select i1 {truth}, i32 1065353216, i32 0" if is_float else f"sext i1 {truth} to i32"
        )
        code.set(instruction.results[0], code.let(result), 32)
        return
    code.set(instruction.results[0], truth, 1)
    if negated:
        code.set(instruction.results[1], negated, 1)


def _emit_pair_comparison(code: ThreadCode, instruction: Instruction, word: str, kind: str) -> None:
    truths = []
    pairs = [code.split_halves(code.get(value, 32)) for value in instruction.operands[:2]]
    for pair in zip(*pairs, strict=True):
        left, right = (code.bits_to_float(half, kind) for half in pair)
        truths.append(code.let(f"fcmp {PTX_COMPARISONS[word]} {LLVM_FLOATS[kind]} {left}, {right}"))
    if instruction.opcode == "setp":
        if len(instruction.results) != 2 or len(instruction.operands) != 2:
            raise instruction.refuse()
        for value, truth in zip(instruction.results, truths, strict=True):
            code.set(value, truth, 1)
        return
    target = instruction.modifiers[1 if instruction.modifiers[1] != "ftz" else 2]
    true_bits = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(target, 0xFFFF)
    halves = [code.let(f"select i1 {truth}, i16 {true_bits}, i16 0") for truth in truths]
    code.set(instruction.results[0], code.join_halves(halves), 32)


def emit_selection(code: ThreadCode, instruction: Instruction) -> None:
    bits = bits_of_type(instruction.type)
    truth = code.get(instruction.operands[2], 1)
    left, right = (code.get(value, bits) for value in instruction.operands[:2])
    result = code.let(f"select i1 {truth}, i{bits} {left}, i{bits} {right}")
    code.set(instruction.results[0], result, bits)
