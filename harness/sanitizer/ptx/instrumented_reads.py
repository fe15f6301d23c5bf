"""Statements that look for uninitialized memory in front of a read: the poison of `torch.empty`.

As in Triton's kernels (`gpu/uninitialized_reads`): a read that finds the poison counts if the
aligned eight bytes around it are all poison, as far as its tensor goes. A vector is checked eight
bytes by eight; for an update the value alone decides. Single bytes are not checked, since
each of their values is a valid one. Example: `ld.global.u16 %rs1, [%rd4];` with 0xFBFB at `%rd4`
reads the eight bytes around it once more.
"""

from __future__ import annotations

import functools
import operator

from harness.sanitizer.gpu import POISON
from harness.sanitizer.ptx.global_accesses import GlobalAccess
from harness.sanitizer.ptx.instrumented_kernel import EMPTY_MASK_OFFSET, UNBOUNDED, empty_bit
from harness.sanitizer.ptx.instrumented_records import PARAMETER

_WORD_BYTES = 8


def is_checked(access: GlobalAccess) -> bool:
    return access.verb != "write" and access.part_size > 1 and access.size in (2, 4, 8, 16, 32)


def write_condition(access: GlobalAccess, guard: str, names: dict[str, str]) -> list[str]:
    """Set %ufp if the memory at %ufa holds poison, and %ufe to the first address that does.

    Poison in memory that `torch.empty` did not make is a value like others; the launch says which.
    """
    code, step = ["setp.ne.s64 %ufp, %ufa, %ufa;"], min(access.size, _WORD_BYTES)
    if access.dynamic_size:  # a shorter copy may point anywhere
        combine, word = (".and", guard.strip().removeprefix("@")) if guard else ("", "")
        dynamic = names.get(access.dynamic_size, access.dynamic_size)
        ended = f", {word}" if word else ""
        code.append(f"setp.eq{combine}.u32 %ufk, {dynamic}, {access.size}{ended};")
        guard = "@%ufk "
    for offset in reversed(range(0, access.size, step)):
        if step == _WORD_BYTES:
            code += [
                "mov.b64 %ufd, 0;",
                f"{guard}ld.global.u64 %ufd, [%ufa+{offset}];",
                f"setp.eq.s64 %ufo, %ufd, {_make_poison(step)};",
            ]
        else:
            code += [
                "mov.b32 %ufh, 0;",
                f"{guard}ld.global.u{8 * step} %ufh, [%ufa+{offset}];",
                f"setp.eq.u32 %ufo, %ufh, {_make_poison(step) & 0xFFFFFFFF >> 32 - 8 * step};",
            ]
        code += [f"@%ufo add.s64 %ufe, %ufa, {offset};", "or.pred %ufp, %ufp, %ufo;"]
    mask = functools.reduce(operator.or_, map(empty_bit, access.roots))
    return [
        *code,
        f"ld.param.u64 %ufd, [{PARAMETER}+{EMPTY_MASK_OFFSET}];",
        f"and.b64 %ufd, %ufd, {mask};",
        "setp.ne.and.s64 %ufp, %ufd, 0, %ufp;",
    ]


def confirm_poison(access: GlobalAccess, back: str, entry_offset: int | None) -> list[str]:
    """Look at the bytes around, and go `back` if they are no poison.

    `entry_offset`: of its tensor's entry in the parameter of the checks, if it is one tensor.
    """
    code: list[str] = []
    if access.verb == "read" and access.size < _WORD_BYTES:
        code += [
            f"and.b64 %ufg, %ufe, -{_WORD_BYTES};",
            "ld.volatile.global.u64 %ufd, [%ufg];",
            f"xor.b64 %ufd, %ufd, {_make_poison(_WORD_BYTES)};",
        ]
        if entry_offset is not None:
            code += [
                f"ld.param.u64 %ufs, [{PARAMETER}+{entry_offset}];",
                f"ld.param.u64 %uft, [{PARAMETER}+{entry_offset + 8}];",
                "add.s64 %ufs, %ufs, %uft;",
                f"add.s64 %ufs, %ufs, {access.size - 1};",  # the tensor's end
                "sub.s64 %ufg, %ufg, %ufs;",
                f"add.s64 %ufg, %ufg, {_WORD_BYTES};",  # the bytes behind it
                f"max.s64 %ufg, %ufg, 0; min.s64 %ufg, %ufg, {_WORD_BYTES - 1};",
                f"setp.eq.u64 %ufo, %uft, {UNBOUNDED};",
                "selp.b64 %ufg, 0, %ufg, %ufo;",
                "cvt.u32.u64 %ufh, %ufg; shl.b32 %ufh, %ufh, 3; shl.b64 %ufd, %ufd, %ufh;",
            ]
        code += ["setp.ne.s64 %ufo, %ufd, 0;", f"@%ufo bra {back};"]
    return code


def _make_poison(size: int) -> int:
    return int.from_bytes(bytes([POISON]) * size, "little", signed=True)
