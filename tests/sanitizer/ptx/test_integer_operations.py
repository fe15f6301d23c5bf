"""Each instruction on integers computes what PTX specifies: a table against Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from operands import TYPES, draw_operand
from ptx_kernels import HEAD, apply_instruction, apply_operation, launch_text, pack_parameters


def widen_values(values: Any) -> list[int]:
    return [int(value) for value in values]


def sign_extend(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def bit_field(value: int, start: int, length: int, bits: int, is_signed: bool) -> int:
    start, length = start & 255, length & 255
    if not length:
        return 0
    source = sign_extend(value, bits) if is_signed else value & ((1 << bits) - 1)
    field = source >> start & ((1 << length) - 1)
    return sign_extend(field, length) if is_signed and length < 200 else field


def find_first(value: int, bits: int, is_signed: bool) -> int:
    if is_signed and value < 0:
        value = ~value
    return value.bit_length() - 1 if value else -1


def permute_bytes(a: int, b: int, control: int) -> int:
    pool = (a | b << 32).to_bytes(8, "little")
    result = 0
    for place in range(4):
        choice = control >> 4 * place & 15
        byte = pool[choice & 7]
        byte = (255 if byte & 128 else 0) if choice & 8 else byte
        result |= byte << 8 * place
    return result


def divide_towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def dot_bytes(a: int, b: int, count: int, wide_bits: int) -> int:
    return sum(
        sign_extend(a >> wide_bits * place, wide_bits) * sign_extend(b >> 8 * place, 8)
        for place in range(count)
    )


Reference = Callable[..., int]
INTEGERS: list[tuple[str, tuple[str, ...], str, Reference]] = [
    ("add.s32", ("s32", "s32"), "s32", lambda a, b: a + b),
    ("add.u16", ("u16", "u16"), "u16", lambda a, b: a + b),
    ("add.s64", ("s64", "s64"), "s64", lambda a, b: a + b),
    ("add.sat.s32", ("s32", "s32"), "s32", lambda a, b: max(-(2**31), min(2**31 - 1, a + b))),
    ("sub.s32", ("s32", "s32"), "s32", lambda a, b: a - b),
    ("sub.s64", ("s64", "s64"), "s64", lambda a, b: a - b),
    ("mul.lo.s32", ("s32", "s32"), "s32", lambda a, b: a * b),
    ("mul.lo.s64", ("s64", "s64"), "s64", lambda a, b: a * b),
    ("mul.hi.s32", ("s32", "s32"), "s32", lambda a, b: a * b >> 32),
    ("mul.hi.u32", ("u32", "u32"), "u32", lambda a, b: a * b >> 32),
    ("mul.hi.u64", ("u64", "u64"), "u64", lambda a, b: a * b >> 64),
    ("mul.hi.s64", ("s64", "s64"), "s64", lambda a, b: a * b >> 64),
    ("mul.wide.s32", ("s32", "s32"), "s64", lambda a, b: a * b),
    ("mul.wide.u32", ("u32", "u32"), "u64", lambda a, b: a * b),
    ("mul.wide.u16", ("u16", "u16"), "u32", lambda a, b: a * b),
    ("mul.wide.s16", ("s16", "s16"), "s32", lambda a, b: a * b),
    ("mad.lo.s32", ("s32", "s32", "s32"), "s32", lambda a, b, c: a * b + c),
    ("mad.hi.u32", ("u32", "u32", "u32"), "u32", lambda a, b, c: (a * b >> 32) + c),
    ("mad.wide.s32", ("s32", "s32", "s64"), "s64", lambda a, b, c: a * b + c),
    ("mad.wide.u32", ("u32", "u32", "u64"), "u64", lambda a, b, c: a * b + c),
    ("mul24.lo.u32", ("u32", "u32"), "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    ("mul24.lo.s32", ("s32", "s32"), "s32", lambda a, b: sign_extend(a, 24) * sign_extend(b, 24)),
    ("div.s32", ("s32", "s32"), "s32", divide_towards_zero),
    ("div.u32", ("u32", "u32"), "u32", lambda a, b: a // b),
    ("div.s64", ("s64", "s64"), "s64", divide_towards_zero),
    ("rem.s32", ("s32", "s32"), "s32", lambda a, b: a - divide_towards_zero(a, b) * b),
    ("rem.u64", ("u64", "u64"), "u64", lambda a, b: a % b),
    ("min.s32", ("s32", "s32"), "s32", min),
    ("max.u32", ("u32", "u32"), "u32", max),
    ("max.s64", ("s64", "s64"), "s64", max),
    ("min.u16", ("u16", "u16"), "u16", min),
    ("and.b32", ("b32", "b32"), "b32", lambda a, b: a & b),
    ("or.b64", ("b64", "b64"), "b64", lambda a, b: a | b),
    ("xor.b32", ("b32", "b32"), "b32", lambda a, b: a ^ b),
    ("not.b32", ("b32",), "b32", lambda a: ~a),
    ("neg.s32", ("s32",), "s32", lambda a: -a),
    ("abs.s32", ("s32",), "s32", abs),
    ("abs.s64", ("s64",), "s64", abs),
    ("shl.b32", ("b32", "u32"), "b32", lambda a, b: a << b if b < 32 else 0),
    ("shr.u32", ("u32", "u32"), "u32", lambda a, b: a >> b if b < 32 else 0),
    ("shr.s32", ("s32", "u32"), "s32", lambda a, b: a >> min(b, 31)),
    ("shl.b64", ("b64", "u32"), "b64", lambda a, b: a << b if b < 64 else 0),
    ("shr.s64", ("s64", "u32"), "s64", lambda a, b: a >> min(b, 63)),
    ("shr.u16", ("u16", "u32"), "u16", lambda a, b: a >> b if b < 16 else 0),
    ("shf.l.wrap.b32", ("b32", "b32", "u32"), "b32",
     lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
    ("shf.r.clamp.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("shf.r.wrap.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) >> (c & 31)),
    ("popc.b32", ("b32",), "u32", lambda a: a.bit_count()),
    ("popc.b64", ("b64",), "u32", lambda a: a.bit_count()),
    ("clz.b32", ("b32",), "u32", lambda a: 32 - a.bit_length()),
    ("clz.b64", ("b64",), "u32", lambda a: 64 - a.bit_length()),
    ("brev.b32", ("b32",), "b32", lambda a: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64", ("b64",), "b64", lambda a: int(f"{a:064b}"[::-1], 2)),
    ("bfind.u32", ("u32",), "u32", lambda a: find_first(a, 32, False)),
    ("bfind.s32", ("s32",), "u32", lambda a: find_first(a, 32, True)),
    ("bfind.u64", ("u64",), "u32", lambda a: find_first(a, 64, False)),
    ("bfind.shiftamt.u32", ("u32",), "u32",
     lambda a: 31 - find_first(a, 32, False) if a else -1),
    ("bfe.u32", ("u32", "u8", "u8"), "u32", lambda a, b, c: bit_field(a, b, c, 32, False)),
    ("bfe.s32", ("s32", "u8", "u8"), "s32", lambda a, b, c: bit_field(a, b, c, 32, True)),
    ("bfe.u64", ("u64", "u8", "u8"), "u64", lambda a, b, c: bit_field(a, b, c, 64, False)),
    ("bfi.b32", ("b32", "b32", "u8", "u8"), "b32",
     lambda a, b, c, d: b & ~(((1 << d) - 1) << c) | (a & ((1 << d) - 1)) << c),
    ("bfi.b64", ("b64", "b64", "u8", "u8"), "b64",
     lambda a, b, c, d: b & ~(((1 << d) - 1) << c) | (a & ((1 << d) - 1)) << c),
    ("prmt.b32", ("b32", "b32", "b32"), "b32", permute_bytes),
    ("sad.s32", ("s32", "s32", "s32"), "s32", lambda a, b, c: abs(a - b) + c),
    ("sad.u32", ("u32", "u32", "u32"), "u32", lambda a, b, c: abs(a - b) + c),
    ("dp4a.s32.s32", ("s32", "s32", "s32"), "s32",
     lambda a, b, c: c + dot_bytes(a, b, 4, 8)),
    ("dp4a.u32.u32", ("u32", "u32", "u32"), "u32",
     lambda a, b, c: c + sum((a >> 8 * i & 255) * (b >> 8 * i & 255) for i in range(4))),
    ("dp2a.lo.s32.s32", ("s32", "s32", "s32"), "s32",
     lambda a, b, c: c + dot_bytes(a, b, 2, 16)),
    ("dp2a.hi.u32.u32", ("u32", "u32", "u32"), "u32",
     lambda a, b, c: c + sum((a >> 16 * i & 65535) * (b >> 16 + 8 * i & 255) for i in range(2))),
    ("selp.b32", ("b32", "b32", "pred"), "b32", lambda a, b, c: a if c else b),
    ("cvt.s64.s32", ("s32",), "s64", lambda a: a),
    ("cvt.u64.u32", ("u32",), "u64", lambda a: a),
    ("cvt.u32.u64", ("u64",), "u32", lambda a: a),
    ("cvt.s32.s8", ("s8",), "s32", lambda a: a),
    ("cvt.u16.u8", ("u8",), "u16", lambda a: a),
    ("cvt.s16.s32", ("s32",), "s16", lambda a: a),
    ("cvt.sat.u8.s32", ("s32",), "u16", lambda a: max(0, min(255, a))),
    ("cvt.sat.s16.s32", ("s32",), "s16", lambda a: max(-32768, min(32767, a))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "result", "reference"), INTEGERS)
def test_integer_instruction(
    name: str, inputs: tuple[str, ...], result: str, reference: Reference
) -> None:
    values = [draw_operand(kind) for kind in inputs]
    if name.startswith(("div", "rem")):
        values[1][values[1] == 0] = 3
    if name.startswith(("bfe.", "bfi.")):
        values[-1] %= 40
        values[-2] %= 40
    found = apply_operation(name, list(zip(inputs, values, strict=True)), (result, TYPES[result]))
    bits = found.itemsize * 8
    expected = [
        reference(*one) & ((1 << bits) - 1) for one in zip(*map(widen_values, values), strict=True)
    ]
    assert [one & ((1 << bits) - 1) for one in widen_values(found)] == expected


def test_lop3_computes_any_table() -> None:
    a, b, c = (draw_operand("b32") for _ in range(3))
    found = apply_instruction(
        "lop3.b32 {d}, {0}, {1}, {2}, 0xE8;",
        [("b32", a), ("b32", b), ("b32", c)],
        ("b32", np.uint32),
    )
    assert np.array_equal(found, (a & b) | (a & c) | (b & c))


def test_a_register_that_nothing_wrote_holds_no_zero() -> None:
    """A card has what an earlier kernel left there; with zeros a lost assignment went unnoticed."""
    text = f"""{HEAD}
.visible .entry kernel(.param .u64 out)
{{
.reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<2>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 0;
@%p1 bra $STORE;
mov.u32 %r2, 5;
$STORE:
mad.wide.u32 %rd1, %r1, 4, %rd1;
st.global.u32 [%rd1], %r2;
ret;
}}
"""
    out = np.zeros(2, np.int32)
    assert launch_text(text, pack_parameters(out), {"out": out}, block=(2, 1, 1)) == []
    assert out.tolist() == [(1 << 31) - 1, 5]
