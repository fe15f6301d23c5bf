"""Tensor cores: `mma.sync`.

Each lane of a warp holds some words of each matrix. Four lanes have a row of A, or a column of B,
in words side by side: of `m16n8k16` with bfloat16, lanes 0 to 3 hold A[0, 0..7] in their first word
and A[0, 8..15] in their third, lanes 4 to 7 row 1. So a row is 16 bytes of the exchanged words for
each half of k, in the order of k, whatever the type. Lane 4 r + t computes rows r and r + 8 of
columns 2 t and 2 t + 1.

PTX leaves the order of the additions open, and how their sums are rounded. Here products and their
sum are float64, and the sum is rounded once, to the nearest: it need not have a card's bits, but it
is next to the true value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.llvm.number_formats import PTX_FLOAT8
from harness.sanitizer.ptx.abi import FrameField
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.thread_code import ThreadCode
from harness.sanitizer.ptx.warp_ops import get_lane, load_word, wait_for_warp

_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, **dict.fromkeys(PTX_FLOAT8, 8)}
_FAMILIES = ({"s8", "u8"}, set(PTX_FLOAT8))  # types that a product may mix
_ACCUMULATORS = {"f16": ("f16", "f32"), "s8": ("s32",), "u8": ("s32",)}
_ACCUMULATORS |= {"bf16": ("f32",), "tf32": ("f32",), **dict.fromkeys(PTX_FLOAT8, ("f16", "f32"))}
_SHAPE = re.compile(r"m16n8k(\d+)")
_PLAIN = {"sync", "aligned", "row", "col", "satfinite", "kind::f8f6f4"}
_HELPER = re.compile(r"@(mma_([a-z0-9]+)_([a-z0-9]+)_([a-z0-9]+)_k(\d+)(_satfinite)?)\(")


@dataclass(frozen=True, slots=True)
class _Product:
    """The form of a product: 16 by `depth` times `depth` by 8."""

    left: str
    right: str
    sum: str
    depth: int
    saturates: bool

    @property
    def chunks(self) -> int:
        """Return how many words a lane holds of a row: each four lanes hold 16 bytes."""
        return self.depth * _BITS[self.left] // 128

    @property
    def is_integer(self) -> bool:
        return self.sum == "s32"

    @property
    def helper(self) -> str:
        end = "_satfinite" if self.saturates else ""
        return f"mma_{self.left}_{self.right}_{self.sum}_k{self.depth}{end}"


def _read_product(instruction: Instruction) -> _Product:
    """Read `m16n8k16.row.col.f32.bf16.bf16.f32`: the types are those of D, A, B and C."""
    shape = next((modifier for modifier in instruction.modifiers if _SHAPE.fullmatch(modifier)), "")
    kinds = [modifier for modifier in instruction.modifiers if modifier not in _PLAIN | {shape}]
    if not shape or len(kinds) != 4 or not instruction.has("sync"):
        raise instruction.refuse()
    target, left, right, start = kinds
    mixes = left == right or any({left, right} <= family for family in _FAMILIES)
    if not mixes or target != start or target not in _ACCUMULATORS.get(left, ()):
        raise instruction.refuse()
    if instruction.has("kind::f8f6f4") and left not in PTX_FLOAT8:
        raise instruction.refuse()
    product = _Product(left, right, target, int(shape[6:]), instruction.has("satfinite"))
    words = [2 * product.chunks, product.chunks, 2 if target == "f16" else 4]
    if product.chunks not in (1, 2) or instruction.groups != words:
        raise instruction.refuse()
    return product


def emit_mma(code: ThreadCode, instruction: Instruction, living: Sequence[IRValue]) -> None:
    product = _read_product(instruction)
    exchanged = instruction.operands[: 3 * product.chunks]
    start = instruction.operands[3 * product.chunks :]
    words = [code.get(value, 32) for value in exchanged]
    follows = any(code.has_companion(result, "u") for result in instruction.results)
    if follows:
        words.append(_join_factors(code, exchanged, product.chunks))
    wait_for_warp(code, instruction, living, words)
    sums = code.alloca("[4 x i32]")
    for place, value in enumerate(start):
        code.store_element("i32", code.get(value, 32), sums, place)
    table = code.to_pointer(code.get_frame(FrameField.EXCHANGE))
    lane = code.let(f"zext i32 {get_lane(code)} to i64")
    code.emit(f"call void @{product.helper}(ptr {table}, i64 {lane}, ptr {sums})")
    for place, result in enumerate(instruction.results):
        code.set(result, code.load_element("i32", sums, place), 32)
        if follows:
            depends = _join_lines(code, 3 * product.chunks, place)
            start_bits = code.join_companions(start[place : place + 1], "u")
            code.set_companion(result, "u", code.let(f"or i32 {depends}, {start_bits}"))


def _join_factors(code: ThreadCode, factors: Sequence[IRValue], chunks: int) -> str:
    """Return where a lane has uninitialized words: bits 0 and 1 for rows, 2 for its column."""
    lines = ([factors[2 * chunk + half] for chunk in range(chunks)] for half in (0, 1))
    flags = "0"
    for bit, values in enumerate((*lines, factors[2 * chunks :])):
        found = code.let(f"icmp ne i32 {code.join_companions(values, 'u')}, 0")
        moved = code.let(f"select i1 {found}, i32 {1 << bit}, i32 0")
        flags = code.let(f"or i32 {flags}, {moved}")
    return flags


def _join_lines(code: ThreadCode, word: int, place: int) -> str:
    """Return whether a sum's row or column has an uninitialized word."""
    lane = get_lane(code)
    row = code.let(f"and i32 {lane}, 28")
    column = code.let(f"add i32 {code.let(f'shl i32 {lane}, 3')}, {4 * (place % 2)}")
    column = code.let(f"and i32 {column}, 28")
    joined = "0"
    for first, bit in ((row, place // 2), (column, 2)):
        for step in range(4):
            flags = load_word(code, code.let(f"add i32 {first}, {step}"), word)
            found = code.let(f"and i32 {flags}, {1 << bit}")
            joined = code.let(f"or i32 {joined}, {found}")
    return joined


# The products themselves, a function for each form that a kernel has


def build_matrix_helpers(text: str) -> str:
    """Build the functions that a kernel's text calls."""
    found = {match.group(1): match for match in _HELPER.finditer(text)}
    return "\n".join(
        _build_product(_Product(one[2], one[3], one[4], int(one[5]), bool(one[6])))
        for _, one in sorted(found.items())
    )


def _build_product(product: _Product) -> str:
    code = PtxFunction(
        f"define internal void @{product.helper}(ptr %table, i64 %lane, ptr %sums) noinline"
    )
    row = code.let("lshr i64 %lane, 2")
    column = code.let(f"shl i64 {code.let('and i64 %lane, 3')}, 1")
    second = code.let(f"add i64 {column}, 1")
    chunks = range(product.chunks)
    rows = [
        [_load_line(code, product.left, 2 * chunk + half, row) for chunk in chunks]
        for half in (0, 1)
    ]
    columns = [
        [_load_line(code, product.right, 2 * product.chunks + chunk, line) for chunk in chunks]
        for line in (column, second)
    ]
    for half in (0, 1):
        totals = [_sum_products(code, product, rows[half], columns[side]) for side in (0, 1)]
        _store_sums(code, product, half, totals)
    code.emit("ret void")
    return str(code)


def _load_line(code: PtxFunction, kind: str, word: int, line: str) -> str:
    """Load 16 bytes of a row or a column, as a vector of float64 or int32."""
    place = code.let(f"add i64 {code.let(f'shl i64 {line}, 2')}, {32 * word}")
    count, bits = 128 // _BITS[kind], _BITS[kind]
    values = code.load(f"<{count} x i{bits}>", code.element_pointer("%table", "i32", place))
    if kind in ("s8", "u8"):
        return code.let(f"{'sext' if kind == 's8' else 'zext'} <16 x i8> {values} to <16 x i32>")
    if kind in PTX_FLOAT8:
        floats = "zeroinitializer"
        for index in range(count):
            byte = code.let(f"extractelement <16 x i8> {values}, i32 {index}")
            wide = code.let(f"call float @widen_{PTX_FLOAT8[kind]}(i8 {byte})")
            floats = code.let(f"insertelement <16 x float> {floats}, float {wide}, i32 {index}")
    elif kind == "f16":
        floats = code.let(f"bitcast <8 x i16> {values} to <8 x half>")
        floats = code.let(f"fpext <8 x half> {floats} to <8 x float>")
    else:
        if kind == "bf16":
            wide = code.let(f"zext <8 x i16> {values} to <8 x i32>")
            values = code.let(f"shl <8 x i32> {wide}, {_make_splat(8, 16)}")
        else:  # 13 bits of a float32 do not count in tf32
            values = code.let(f"and <4 x i32> {values}, {_make_splat(4, -8192)}")
        floats = code.let(f"bitcast <{count} x i32> {values} to <{count} x float>")
    return code.let(f"fpext <{count} x float> {floats} to <{count} x double>")


def _make_splat(count: int, number: int) -> str:
    return f"<{', '.join([f'i32 {number}'] * count)}>"


def _sum_products(
    code: PtxFunction, product: _Product, lefts: Sequence[str], rights: Sequence[str]
) -> str:
    count = 128 // _BITS[product.left]
    element, multiply, add = (
        ("i32", "mul", "add") if product.is_integer else ("double", "fmul", "fadd")
    )
    vector = f"<{count} x {element}>"
    parts = [
        code.let(f"{multiply} {vector} {left}, {right}")
        for left, right in zip(lefts, rights, strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = code.let(f"{add} {vector} {total}, {part}")
    if product.is_integer:
        return code.let(f"call i32 @llvm.vector.reduce.add.v{count}i32({vector} {total})")
    return code.let(
        f"call double @llvm.vector.reduce.fadd.v{count}f64(double -0.0, {vector} {total})"
    )


def _store_sums(code: PtxFunction, product: _Product, half: int, totals: Sequence[str]) -> None:
    """Add what a lane's two sums of a row start with, and store them there."""
    for side, total in enumerate(totals):
        place = 2 * half + side
        if product.is_integer:
            start = code.let(f"sext i32 {code.load_element('i32', '%sums', place)} to i64")
            exact = code.let(f"add i64 {start}, {code.let(f'sext i32 {total} to i64')}")
            if product.saturates:
                exact = code.call_intrinsic("smax", "i64", exact, -(1 << 31))
                exact = code.call_intrinsic("smin", "i64", exact, (1 << 31) - 1)
            code.store_element("i32", code.let(f"trunc i64 {exact} to i32"), "%sums", place)
            continue
        llvm = "half" if product.sum == "f16" else "float"
        start = code.load_element(llvm, "%sums", place)
        start = code.let(f"fpext {llvm} {start} to double")
        exact = code.let(f"fadd double {start}, {total}")
        if llvm == "half":
            odd = code.let(f"call float @narrow_odd(double {exact})")
            quiet = code.let(f"call float @quiet(float {odd})")
            result = code.let(f"fptrunc float {quiet} to half")
        else:
            rounded = code.let(f"fptrunc double {exact} to float")
            result = code.let(f"call float @quiet(float {rounded})")
        code.store_element(llvm, result, "%sums", place)
