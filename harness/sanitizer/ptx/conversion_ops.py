"""Conversions between types: `cvt` with its rounding, saturation and packed forms."""

from __future__ import annotations

from harness.sanitizer.llvm.number_formats import PTX_FLOAT8
from harness.sanitizer.ptx.float_ops import find_direction, round_directed, saturate_float
from harness.sanitizer.ptx.instructions import Instruction, is_float_type
from harness.sanitizer.ptx.parser import NUMBER_TYPES, bits_of_type
from harness.sanitizer.ptx.thread_code import LLVM_FLOATS, ThreadCode

_FLOAT8 = {f"{name}x2": element for name, element in PTX_FLOAT8.items()}
_FLOAT4 = "e2m1x2"
_SCALES = "ue8m0x2"  # two powers of two
_TO_INTEGER = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}  # LLVM's names
_TYPES = (NUMBER_TYPES | {*_FLOAT8, _FLOAT4, _SCALES}) - {"pred"}


def emit_conversion(code: ThreadCode, instruction: Instruction) -> None:
    if instruction.opcode == "cvt" and instruction.has("relu", "rs", "tf32", "pack"):
        raise instruction.refuse()
    kinds = [modifier for modifier in instruction.modifiers if modifier in _TYPES]
    if len(kinds) != 2:
        raise instruction.refuse()
    target, source = kinds
    if target == _SCALES:
        _emit_scales(code, instruction, source)
    elif _FLOAT4 in kinds:
        _emit_float4(code, instruction, target, source)
    elif target in _FLOAT8 or source in _FLOAT8:
        _emit_float8(code, instruction, target, source)
    elif target.endswith("x2"):
        _emit_packing(code, instruction, target[:-2], source)
    elif is_float_type(target) and is_float_type(source):
        name = convert_float(
            code, instruction, code.get_float(instruction.operands[0], source), source, target
        )
        code.set_float(instruction.results[0], name, target)
    elif is_float_type(target):
        _emit_from_integer(code, instruction, target, source)
    elif is_float_type(source):
        _emit_to_integer(code, instruction, target, source)
    else:
        _emit_integers(code, instruction, target, source)


def _emit_integers(code: ThreadCode, instruction: Instruction, target: str, source: str) -> None:
    bits, wide = bits_of_type(source), bits_of_type(target)
    signed = source[0] == "s"
    value = code.get(instruction.operands[0], bits)
    if instruction.has("sat"):
        value = _saturate_integer(code, value, bits, signed, wide, target[0] == "s")
    else:
        value = code.resize(value, bits, wide, signed)
    code.set(instruction.results[0], value, wide, target[0] == "s")


def _saturate_integer(
    code: ThreadCode, value: str, bits: int, signed: bool, target_bits: int, target_signed: bool
) -> str:
    value = code.resize(value, bits, 128, signed)
    low = -(1 << (target_bits - 1)) if target_signed else 0
    high = (1 << (target_bits - target_signed)) - 1
    value = code.call_intrinsic("smax", "i128", value, low)
    value = code.call_intrinsic("smin", "i128", value, high)
    return code.resize(value, 128, target_bits)


def convert_float(
    code: ThreadCode, instruction: Instruction, name: str, source: str, target: str
) -> str:
    """Convert a float to another float type; the result of bfloat16 is its float32, not rounded."""
    llvm, target_llvm = LLVM_FLOATS[source], LLVM_FLOATS[target]
    if source == "f32" and instruction.has("ftz"):
        name = code.let(f"call float @flush(float {name})")
    integral = instruction.find(*_TO_INTEGER)
    if integral is not None:
        name = code.call_intrinsic(_TO_INTEGER[integral], llvm, name)
    narrower = bits_of_type(target) < bits_of_type(source)
    if (source, target) == ("f64", "f32"):
        direction = find_direction(instruction, target)
        if direction is not None:
            return round_directed(code, name, direction)
    if narrower and instruction.has("rm", "rp"):
        raise instruction.refuse("only rounding to the nearest and to zero")
    if narrower and instruction.has("rz"):
        name = _round_to_zero(code, instruction, name, source, target)
    elif llvm != target_llvm:
        if llvm == "double" and target in ("f16", "bf16"):
            name, llvm = code.let(f"call float @narrow_odd(double {name})"), "float"
        order = ("half", "float", "double")
        if llvm != target_llvm:
            verb = "fpext" if order.index(llvm) < order.index(target_llvm) else "fptrunc"
            name = code.let(f"{verb} {llvm} {name} to {target_llvm}")
    if instruction.has("sat"):
        name = saturate_float(code, name, target_llvm)
    if target == "f32" and instruction.has("ftz"):
        name = code.let(f"call float @flush(float {name})")
    return name


def _round_to_zero(
    code: ThreadCode, instruction: Instruction, name: str, source: str, target: str
) -> str:
    """Drop the bits of the fraction that the target has not; only for bfloat16."""
    if (source, target) != ("f32", "bf16"):
        raise instruction.refuse("rounding to zero")
    bits = code.let(f"and i32 {code.let(f'bitcast float {name} to i32')}, -65536")
    nan = code.let(f"fcmp uno float {name}, 0.0")
    bits = code.let(f"select i1 {nan}, i32 2147418112, i32 {bits}")
    return code.let(f"bitcast i32 {bits} to float")


def _emit_packing(code: ThreadCode, instruction: Instruction, target: str, source: str) -> None:
    """Convert two float32: the first one becomes the upper half."""
    if source != "f32" or len(instruction.operands) != 2:
        raise instruction.refuse()
    halves = []
    for value in reversed(instruction.operands):
        name = convert_float(code, instruction, code.get_float(value, source), source, target)
        halves.append(code.float_to_bits(name, target))
    code.set(instruction.results[0], code.join_halves(halves), 32)


def _emit_float8(code: ThreadCode, instruction: Instruction, target: str, source: str) -> None:
    if target in _FLOAT8:
        if source == "f32":
            values = [code.get_float(value, "f32") for value in reversed(instruction.operands)]
        elif source == "f16x2":
            halves = code.split_halves(code.get(instruction.operands[0], 32))
            floats = [code.bits_to_float(half, "f16") for half in halves]
            values = [code.let(f"fpext half {value} to float") for value in floats]
        else:
            raise instruction.refuse()
        narrow = f"call i8 @narrow_{_FLOAT8[target]}"
        codes = [code.let(f"{narrow}(float {value})") for value in values]
        code.set(instruction.results[0], code.join_halves(codes, 8), 16)
        return
    if target != "f16x2":
        raise instruction.refuse()
    halves = []
    for byte in code.split_halves(code.get(instruction.operands[0], 16), 8):
        wide = code.let(f"call float @widen_{_FLOAT8[source]}(i8 {byte})")
        halves.append(code.float_to_bits(code.let(f"fptrunc float {wide} to half"), "f16"))
    code.set(instruction.results[0], code.join_halves(halves), 32)


def _emit_float4(code: ThreadCode, instruction: Instruction, target: str, source: str) -> None:
    """Convert two float32 to a byte, the first one above, or a byte to two halves."""
    if source == "f32" and instruction.has("satfinite") and len(instruction.operands) == 2:
        above, below = (
            code.let(f"call i8 @narrow_e2m1(float {code.get_float(value, source)})")
            for value in instruction.operands
        )
        byte = code.let(f"or i8 {code.let(f'shl i8 {above}, 4')}, {below}")
        code.set(instruction.results[0], byte, 8)
        return
    if target != "f16x2":
        raise instruction.refuse()
    byte = code.get(instruction.operands[0], 8)
    nibbles = byte, code.let(f"lshr i8 {byte}, 4")  # of the first one the upper half is ignored
    halves = [code.let(f"call i16 @widen_e2m1(i8 {nibble})") for nibble in nibbles]
    code.set(instruction.results[0], code.join_halves(halves), 32)


def _emit_scales(code: ThreadCode, instruction: Instruction, source: str) -> None:
    """Convert the sizes of two float32 to exponents, the first one above; NaN is 255."""
    mode = instruction.find("rz", "rp")
    if source != "f32" or mode is None:
        raise instruction.refuse()
    largest = 254 if instruction.has("satfinite") else 255
    codes = []
    for value in reversed(instruction.operands):
        size = code.let(f"and i32 {code.get(value, 32)}, {(1 << 31) - 1}")
        exponent = code.let(f"lshr i32 {size}, 23")
        if mode == "rp":  # a subnormal number is between 2**-127 and 2**-126, or below
            rest = code.let(f"and i32 {size}, {(1 << 23) - 1}")
            none = code.let(f"icmp eq i32 {exponent}, 0")
            limit = code.let(f"select i1 {none}, i32 {1 << 22}, i32 0")
            above = code.let(f"icmp ugt i32 {rest}, {limit}")
            exponent = code.let(f"add i32 {exponent}, {code.let(f'zext i1 {above} to i32')}")
        exponent = code.call_intrinsic("umin", "i32", exponent, largest)
        nan = code.let(f"icmp ugt i32 {size}, {0x7F800000}")
        exponent = code.let(f"select i1 {nan}, i32 255, i32 {exponent}")
        codes.append(code.let(f"trunc i32 {exponent} to i8"))
    code.set(instruction.results[0], code.join_halves(codes, 8), 16)


def _emit_from_integer(
    code: ThreadCode, instruction: Instruction, target: str, source: str
) -> None:
    direction = find_direction(instruction, target)
    bits, signed = bits_of_type(source), source[0] == "s"
    value = code.get(instruction.operands[0], bits)
    verb = "sitofp" if signed else "uitofp"
    if direction is not None:
        if bits > 32:
            raise instruction.refuse("only rounding to the nearest")
        wide = code.let(f"{verb} i{bits} {value} to double")
        code.set_float(instruction.results[0], round_directed(code, wide, direction), target)
        return
    if target in ("f32", "f64"):
        name = code.let(f"{verb} i{bits} {value} to {LLVM_FLOATS[target]}")
    elif bits <= 32:
        wide = code.let(f"{verb} i{bits} {value} to double")
        name = code.let(f"call float @narrow_odd(double {wide})")
        if target == "f16":
            name = code.let(f"fptrunc float {name} to half")
    else:
        raise instruction.refuse()
    code.set_float(instruction.results[0], name, target)


def _emit_to_integer(code: ThreadCode, instruction: Instruction, target: str, source: str) -> None:
    """Round, and limit to what the target holds; NaN becomes 0."""
    integral = instruction.find(*_TO_INTEGER)
    if integral is None:
        raise instruction.refuse()
    llvm = LLVM_FLOATS[source]
    name = code.get_float(instruction.operands[0], source)
    if llvm == "half":
        name, llvm = code.let(f"fpext half {name} to float"), "float"
    if source == "f32" and instruction.has("ftz"):
        name = code.let(f"call float @flush(float {name})")
    suffix = {"float": "f32", "double": "f64"}[llvm]
    name = code.call_intrinsic(_TO_INTEGER[integral], llvm, name)
    bits, signed = bits_of_type(target), target[0] == "s"
    verb = "fptosi" if signed else "fptoui"
    value = code.let(f"call i{bits} @llvm.{verb}.sat.i{bits}.{suffix}({llvm} {name})")
    code.set(instruction.results[0], value, bits, signed)
