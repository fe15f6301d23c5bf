"""Instructions on integers, bits and predicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.parser import bits_of_type
from harness.sanitizer.ptx.thread_code import ThreadCode

Emitter = Callable[[ThreadCode, Instruction], None]


def _get_all(code: ThreadCode, instruction: Instruction, bits: int) -> list[str]:
    return [code.get(value, bits) for value in instruction.operands]


def make_expression_emitter(expression: str) -> Emitter:
    """Make an emitter for operands and a result of one type: N is its bits, S its sign's letter."""

    def emit(code: ThreadCode, instruction: Instruction) -> None:
        kind = instruction.type
        bits, is_signed = bits_of_type(kind), kind[0] == "s"
        if instruction.has("cc", "sat", "relu") or kind.endswith("x2"):
            raise instruction.refuse()
        text = expression.replace("N", str(bits)).replace("S", "s" if is_signed else "u")
        result = code.let(text.format(*_get_all(code, instruction, bits)))
        code.set(instruction.results[0], result, bits, is_signed)

    return emit


def make_sum_emitter(verb: str) -> Emitter:
    emit_plain = make_expression_emitter(f"{verb} iN {{0}}, {{1}}")

    def emit(code: ThreadCode, instruction: Instruction) -> None:
        if not instruction.has("sat"):
            emit_plain(code, instruction)
            return
        operands = _get_all(code, instruction, 32)
        result = code.call_intrinsic(f"s{verb}.sat", "i32", *operands)
        code.set(instruction.results[0], result, 32)

    return emit


def emit_product(
    code: ThreadCode, instruction: Instruction, bits: int, signed: bool
) -> tuple[str, int]:
    """Emit the product's half that the instruction names, and return its bits."""
    left, right = instruction.operands[:2]
    if instruction.has("lo") or not instruction.has("hi", "wide"):
        a, b = code.get(left, bits), code.get(right, bits)
        return code.let(f"mul i{bits} {a}, {b}"), bits
    wide = 2 * bits
    a, b = (code.resize(code.get(operand, bits), bits, wide, signed) for operand in (left, right))
    product = code.let(f"mul i{wide} {a}, {b}")
    if instruction.has("wide"):
        return product, wide
    high = code.let(f"lshr i{wide} {product}, {bits}")
    return code.let(f"trunc i{wide} {high} to i{bits}"), bits


def emit_mul(code: ThreadCode, instruction: Instruction) -> None:
    kind = instruction.type
    result, bits = emit_product(code, instruction, bits_of_type(kind), kind[0] == "s")
    code.set(instruction.results[0], result, bits)


def emit_mad(code: ThreadCode, instruction: Instruction) -> None:
    if instruction.has("cc", "sat"):
        raise instruction.refuse()
    kind = instruction.type
    product, bits = emit_product(code, instruction, bits_of_type(kind), kind[0] == "s")
    addend = code.get(instruction.operands[2], bits)
    code.set(instruction.results[0], code.let(f"add i{bits} {product}, {addend}"), bits)


def emit_mul24(code: ThreadCode, instruction: Instruction) -> None:
    signed = instruction.type[0] == "s"
    sides = []
    for value in instruction.operands[:2]:
        low = code.let(f"shl i32 {code.get(value, 32)}, 8")
        sides.append(code.let(f"{'ashr' if signed else 'lshr'} i32 {low}, 8"))
    if instruction.has("hi"):
        raise instruction.refuse()
    result = code.let(f"mul i32 {sides[0]}, {sides[1]}")
    if instruction.opcode == "mad24":
        result = code.let(f"add i32 {result}, {code.get(instruction.operands[2], 32)}")
    code.set(instruction.results[0], result, 32)


def emit_shift(code: ThreadCode, instruction: Instruction) -> None:
    """Shift; an amount above the width counts as the width."""
    kind = instruction.type
    bits = bits_of_type(kind)
    value = code.get(instruction.operands[0], bits)
    amount = code.get(instruction.operands[1], 32)
    known = code.constant_of(instruction.operands[1])
    arithmetic = instruction.opcode == "shr" and kind[0] == "s"
    verb = "shl" if instruction.opcode == "shl" else "ashr" if arithmetic else "lshr"
    last = code.call_intrinsic("umin", "i32", amount, bits - 1)
    sized = code.resize(last, 32, bits)
    result = code.let(f"{verb} i{bits} {value}, {sized}")
    if not arithmetic and (known is None or not 0 <= known < bits):
        inside = code.let(f"icmp ult i32 {amount}, {bits}")
        result = code.let(f"select i1 {inside}, i{bits} {result}, i{bits} 0")
    code.set(instruction.results[0], result, bits, kind[0] == "s")


def emit_funnel_shift(code: ThreadCode, instruction: Instruction) -> None:
    low, high, amount = _get_all(code, instruction, 32)
    if instruction.has("clamp"):
        amount = code.call_intrinsic("umin", "i32", amount, 32)
    else:
        amount = code.let(f"and i32 {amount}, 31")
    both = code.join_halves([low, high], 32)
    wide_amount = code.let(f"zext i32 {amount} to i64")
    if instruction.has("l"):
        both = code.let(f"lshr i64 {code.let(f'shl i64 {both}, {wide_amount}')}, 32")
    else:
        both = code.let(f"lshr i64 {both}, {wide_amount}")
    code.set(instruction.results[0], code.let(f"trunc i64 {both} to i32"), 32)


def emit_bfind(code: ThreadCode, instruction: Instruction) -> None:
    kind = instruction.type
    bits = bits_of_type(kind)
    value = code.get(instruction.operands[0], bits)
    if kind[0] == "s":
        sign = code.let(f"ashr i{bits} {value}, {bits - 1}")
        value = code.let(f"xor i{bits} {value}, {sign}")
    zeros = code.let(f"call i{bits} @llvm.ctlz.i{bits}(i{bits} {value}, i1 false)")
    count = code.resize(zeros, bits, 32)
    distance = code.let(f"sub i32 {bits - 1}, {count}")
    result = count if instruction.has("shiftamt") else distance
    none = code.let(f"icmp eq i{bits} {value}, 0")
    code.set(instruction.results[0], code.let(f"select i1 {none}, i32 -1, i32 {result}"), 32)


def _get_field(code: ThreadCode, operands: Sequence[IRValue], bits: int) -> list[str]:
    """Return the start and the length of a field of bits: 8 bits each, at most the width."""
    values = [code.let(f"and i32 {code.get(operand, 32)}, 255") for operand in operands]
    return [code.call_intrinsic("umin", "i32", value, bits) for value in values]


def emit_bfe(code: ThreadCode, instruction: Instruction) -> None:
    kind = instruction.type
    bits = bits_of_type(kind)
    wide = 2 * bits
    signed = kind[0] == "s"
    value = code.get(instruction.operands[0], bits)
    start, length = _get_field(code, instruction.operands[1:], bits)
    wide_value = code.resize(value, bits, wide, signed)
    wide_start = code.resize(start, 32, wide)
    shifted = code.let(f"{'ashr' if signed else 'lshr'} i{wide} {wide_value}, {wide_start}")
    half = code.let(f"trunc i{wide} {shifted} to i{bits}")
    gap = code.let(f"sub i32 {bits}, {length}")
    is_empty = code.let(f"icmp eq i32 {length}, 0")
    safe = code.let(f"select i1 {is_empty}, i32 0, i32 {gap}")
    safe_bits = code.resize(safe, 32, bits)
    up = code.let(f"shl i{bits} {half}, {safe_bits}")
    down = code.let(f"{'ashr' if signed else 'lshr'} i{bits} {up}, {safe_bits}")
    result = code.let(f"select i1 {is_empty}, i{bits} 0, i{bits} {down}")
    code.set(instruction.results[0], result, bits)


def emit_bfi(code: ThreadCode, instruction: Instruction) -> None:
    bits = bits_of_type(instruction.type)
    wide = 2 * bits
    inserted, base = (code.get(value, bits) for value in instruction.operands[:2])
    start, length = _get_field(code, instruction.operands[2:], bits)
    wide_start, wide_length = code.resize(start, 32, wide), code.resize(length, 32, wide)
    ones = code.let(f"sub i{wide} {code.let(f'shl i{wide} 1, {wide_length}')}, 1")
    mask = code.let(f"shl i{wide} {ones}, {wide_start}")
    narrow_mask = code.let(f"trunc i{wide} {mask} to i{bits}")
    wide_value = code.let(f"zext i{bits} {inserted} to i{wide}")
    moved = code.let(f"shl i{wide} {wide_value}, {wide_start}")
    narrow = code.let(f"trunc i{wide} {moved} to i{bits}")
    put = code.let(f"and i{bits} {narrow}, {narrow_mask}")
    others = code.let(f"xor i{bits} {narrow_mask}, -1")
    left = code.let(f"and i{bits} {base}, {others}")
    code.set(instruction.results[0], code.let(f"or i{bits} {left}, {put}"), bits)


def emit_prmt(code: ThreadCode, instruction: Instruction) -> None:
    if instruction.has("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        raise instruction.refuse()
    low, high, control = _get_all(code, instruction, 32)
    both = code.join_halves([low, high], 32)
    result = "0"
    for place in range(4):
        choice = code.let(f"lshr i32 {control}, {4 * place}")
        index = code.let(f"shl i32 {code.let(f'and i32 {choice}, 7')}, 3")
        picked = code.let(f"lshr i64 {both}, {code.let(f'zext i32 {index} to i64')}")
        byte = code.let(f"trunc i64 {picked} to i8")
        sign = code.let(f"ashr i8 {byte}, 7")
        replicate = code.let(f"icmp ne i32 {code.let(f'and i32 {choice}, 8')}, 0")
        byte = code.let(f"select i1 {replicate}, i8 {sign}, i8 {byte}")
        moved = code.let(f"shl i32 {code.let(f'zext i8 {byte} to i32')}, {8 * place}")
        result = code.let(f"or i32 {result}, {moved}")
    code.set(instruction.results[0], result, 32)


def emit_lop3(code: ThreadCode, instruction: Instruction) -> None:
    a, b, c = (code.get(value, 32) for value in instruction.operands[:3])
    table = code.constant_of(instruction.operands[3])
    if table is None or instruction.has("BoolOp"):
        raise instruction.refuse()
    negated = {name: code.let(f"xor i32 {name}, -1") for name in dict.fromkeys((a, b, c))}
    result = "0"
    for row in range(8):
        if table >> row & 1:
            terms = [
                name if row >> bit & 1 else negated[name] for name, bit in ((a, 2), (b, 1), (c, 0))
            ]
            both = code.let(f"and i32 {terms[0]}, {terms[1]}")
            result = code.let(f"or i32 {result}, {code.let(f'and i32 {both}, {terms[2]}')}")
    code.set(instruction.results[0], result, 32)


def emit_sad(code: ThreadCode, instruction: Instruction) -> None:
    kind = instruction.type
    bits = bits_of_type(kind)
    a, b, c = _get_all(code, instruction, bits)
    order = "s" if kind[0] == "s" else "u"
    high, low = (code.call_intrinsic(f"{order}{verb}", f"i{bits}", a, b) for verb in ("max", "min"))
    distance = code.let(f"sub i{bits} {high}, {low}")
    code.set(instruction.results[0], code.let(f"add i{bits} {c}, {distance}"), bits)


def emit_dot_product(code: ThreadCode, instruction: Instruction) -> None:
    """`dp4a`: four products of bytes; `dp2a`: two halves of a by two bytes of b."""
    kinds = [modifier for modifier in instruction.modifiers if modifier in ("u32", "s32")]
    a, b, total = (code.get(value, 32) for value in instruction.operands)
    count, wide = (4, 8) if instruction.opcode == "dp4a" else (2, 16)
    first = 2 if instruction.opcode == "dp2a" and instruction.has("hi") else 0

    def pick(value: str, place: int, bits: int, kind: str) -> str:
        part = code.resize(code.let(f"lshr i32 {value}, {place * bits}"), 32, bits)
        return code.resize(part, bits, 32, kind == "s32")

    for place in range(count):
        left = pick(a, place, wide, kinds[0])
        right = pick(b, first + place, 8, kinds[1])
        total = code.let(f"add i32 {total}, {code.let(f'mul i32 {left}, {right}')}")
    code.set(instruction.results[0], total, 32)


def emit_bmsk(code: ThreadCode, instruction: Instruction) -> None:
    start, length = _get_all(code, instruction, 32)
    if instruction.has("wrap"):
        start, length = code.let(f"and i32 {start}, 31"), code.let(f"and i32 {length}, 31")
    start = code.call_intrinsic("umin", "i32", start, 32)
    length = code.call_intrinsic("umin", "i32", length, 32)
    wide_start, wide_length = code.resize(start, 32, 64), code.resize(length, 32, 64)
    ones = code.let(f"sub i64 {code.let(f'shl i64 1, {wide_length}')}, 1")
    mask = code.let(f"trunc i64 {code.let(f'shl i64 {ones}, {wide_start}')} to i32")
    code.set(instruction.results[0], mask, 32)
