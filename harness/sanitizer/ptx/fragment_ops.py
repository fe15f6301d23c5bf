"""Fragments in shared memory, `ldmatrix` and `stmatrix`: matrices of 8 rows, each 16 bytes.

Each row is an access of the lane that gives its address; each lane holds a word of each matrix, as
`mma.sync` takes it. An uninitialized row is loaded as poison (`uninitialized_words`).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.ptx.abi import PtxRegionField
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.memory_ops import emit_address, emit_check, emit_uninitialized_store
from harness.sanitizer.ptx.thread_code import ThreadCode
from harness.sanitizer.ptx.used_bytes import NO_BYTES
from harness.sanitizer.ptx.warp_ops import get_lane, load_word, wait_for_warp

_ROW_BYTES = 16
_POISON = 0x7FFF  # of two bytes: not a number as a float of any type


def build_row_function() -> str:
    """Build the function that copies a row; two bytes of which one is uninitialized are poison.

    It returns a bit for each two of which that is so.
    """
    code = PtxFunction("define i32 @ptx_load_row(ptr %context, i64 %address, i32 %region, ptr %to)")
    code.copy_bytes("%to", code.to_pointer("%address"), _ROW_BYTES)
    uninitialized = code.alloca("i32", "0")
    _, region = code.load_region()
    shadow = code.load_field(region, PtxRegionField.UNINITIALIZED)
    with code.when(code.is_nonzero(shadow)):
        start = code.load_field(region, PtxRegionField.START)
        place = code.let(f"add i64 {shadow}, {code.let(f'sub i64 %address, {start}')}")
        flags = code.to_pointer(place)
        with code.loop(_ROW_BYTES // 2) as index:
            flag = code.load("i16", f"{code.element_pointer(flags, 'i16', index)}, align 1")
            with code.when(code.let(f"icmp ne i16 {flag}, 0")):
                code.store_element("i16", str(_POISON), "%to", index)
                bit = code.let(f"shl i32 1, {code.let(f'trunc i64 {index} to i32')}")
                known = code.load("i32", uninitialized)
                code.store("i32", code.let(f"or i32 {known}, {bit}"), uninitialized)
    code.emit(f"ret i32 {code.load('i32', uninitialized)}")
    return str(code)


def _count_matrices(instruction: Instruction) -> int:
    count = instruction.find("x1", "x2", "x4")
    if count is None or not instruction.has("m8n8") or not instruction.has("b16"):
        raise instruction.refuse()
    return int(count[1:])


def emit_matrix_load(code: ThreadCode, instruction: Instruction, living: Sequence[IRValue]) -> None:
    """Load matrices of which lanes 8 i to 8 i + 7 give the addresses of the rows of the i-th."""
    count = _count_matrices(instruction)
    row, uninitialized = code.alloca("[4 x i32]"), code.alloca("i32", "0")
    gives_address = code.let(f"icmp ult i32 {get_lane(code)}, {8 * count}")
    pointer = instruction.operands[0]
    with code.when(gives_address):
        address = emit_address(code, instruction)
        # An uninitialized byte is poison, and no report.
        emit_check(code, instruction, "read", address, _ROW_BYTES, pointer, used_bytes=NO_BYTES)
        region = code.get_companion(pointer, "r")
        call = f"call i32 @ptx_load_row(ptr %context, i64 {address}, i32 {region}, ptr {row})"
        code.store("i32", code.let(call), uninitialized)
    words = [code.load_element("i32", row, place) for place in range(4)]
    words.append(code.load("i32", uninitialized))
    wait_for_warp(code, instruction, living, words)
    for matrix, result in enumerate(instruction.results):
        code.set(result, _gather_word(code, matrix, instruction.has("trans")), 32)
        if code.has_companion(result, "u"):
            depends = _gather_uninitialized(code, matrix, instruction.has("trans"))
            code.set_companion(result, "u", depends)


def _gather_uninitialized(code: ThreadCode, matrix: int, is_transposed: bool) -> str:
    """Return which of this lane's elements of a matrix are uninitialized: not 0 if one."""
    lane = get_lane(code)
    group, pair = code.let(f"lshr i32 {lane}, 2"), code.let(f"and i32 {lane}, 3")
    twice = code.let(f"shl i32 {pair}, 1")
    if not is_transposed:
        flags = load_word(code, code.let(f"add i32 {group}, {8 * matrix}"), 4)
        return code.extract_bits(flags, twice, 3, "i32")
    first = load_word(code, code.let(f"add i32 {twice}, {8 * matrix}"), 4)
    second = load_word(code, code.let(f"add i32 {twice}, {8 * matrix + 1}"), 4)
    flags = code.let(f"or i32 {first}, {second}")
    return code.extract_bits(flags, group, 1, "i32")


def _gather_word(code: ThreadCode, matrix: int, is_transposed: bool) -> str:
    """Return this lane's two elements of a matrix whose rows the lanes 8 i to 8 i + 7 hold."""
    lane = get_lane(code)
    line = code.let(f"add i32 {code.let(f'lshr i32 {lane}, 2')}, {8 * matrix}")
    pair = code.let(f"and i32 {lane}, 3")
    if not is_transposed:
        return _load_word_at(code, line, pair)
    first = code.let(f"add i32 {code.let(f'shl i32 {pair}, 1')}, {8 * matrix}")
    column = code.let(f"lshr i32 {lane}, 2")
    halves = [
        _load_half(code, owner, code.let(f"lshr i32 {column}, 1"), column)
        for owner in (first, code.let(f"add i32 {first}, 1"))
    ]
    return code.let(f"or i32 {halves[0]}, {code.let(f'shl i32 {halves[1]}, 16')}")


def _load_word_at(code: ThreadCode, lane: str, word: str) -> str:
    """Load a word of another lane whose number is known as the kernel runs."""
    return load_word(code, code.let(f"add i32 {lane}, {code.let(f'shl i32 {word}, 5')}"))


def _load_half(code: ThreadCode, lane: str, word: str, odd: str) -> str:
    """Load the lower half of a lane's word, or the upper one for an odd number."""
    value = _load_word_at(code, lane, word)
    shift = code.let(f"shl i32 {code.let(f'and i32 {odd}, 1')}, 4")
    return code.extract_bits(value, shift, 65535, "i32")


def emit_matrix_store(
    code: ThreadCode, instruction: Instruction, living: Sequence[IRValue]
) -> None:
    """Store matrices, each row by the lane that gives its address."""
    count = _count_matrices(instruction)
    pointer, *values = instruction.operands
    words = [code.get(value, 32) for value in values]
    follows = any(code.has_companion(value, "u") for value in values)
    if follows:
        flags = [code.join_companions([value], "u") for value in values]
        are_set = [code.let(f"icmp ne i32 {flag}, 0") for flag in flags]
        words += [code.resize(is_set, 1, 32) for is_set in are_set]
    wait_for_warp(code, instruction, living, words)
    lane = get_lane(code)
    with code.when(code.let(f"icmp ult i32 {lane}, {8 * count}")):
        matrix = code.let(f"lshr i32 {lane}, 3")
        line = code.let(f"and i32 {lane}, 7")
        row, depends = code.alloca("[4 x i32]"), "0"
        for place in range(4):
            if instruction.has("trans"):
                # Lane 4 c + r / 2 holds column c of rows r and r + 1.
                pair = code.let(f"lshr i32 {line}, 1")
                owners = [code.let(f"add i32 {pair}, {4 * (2 * place + k)}") for k in (0, 1)]
                low, high = (_load_half(code, owner, matrix, line) for owner in owners)
                word = code.let(f"or i32 {low}, {code.let(f'shl i32 {high}, 16')}")
            else:
                owners = [code.let(f"add i32 {code.let(f'shl i32 {line}, 2')}, {place}")]
                word = _load_word_at(code, owners[0], matrix)
            code.store_element("i32", word, row, place)
            for owner in owners if follows else ():
                flag = _load_word_at(code, owner, code.let(f"add i32 {matrix}, {count}"))
                depends = code.let(f"or i32 {depends}, {flag}")
        address = emit_address(code, instruction)
        site = emit_check(code, instruction, "write", address, _ROW_BYTES, pointer, new_bytes=row)
        emit_uninitialized_store(code, instruction, site, address, _ROW_BYTES, depends)
        code.copy_bytes(code.to_pointer(address), row, _ROW_BYTES)
