"""Statements that look for races between blocks, by the tables of `gpu/shadow_memory`.

The checks are those of Triton's kernels (`gpu/race_checks`), a block being a program: a store
exchanges its block's entry and the value that it wrote, a load its entry as a reader; each compares
the entry that it takes out. Invariant: a report is true whatever the order of the blocks, since
nothing orders them. A kernel whose blocks may wait for each other is not checked. Threads of one
block are not distinguished; the executor does that.

Accesses that may meet, by the parameters of their pointers, are one `RaceGroup`, and are checked
in pieces of the size of its smallest access. The launch says which groups count (`check_values`):
those that are written, and those whose memory overlaps a written one's.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.sanitizer.gpu.report_assembly import RecordField
from harness.sanitizer.gpu.shadow_entries import (
    ATOMIC_FLAG,
    CHANGED_FLAG,
    FLAG_BITS,
    HASH_MULTIPLIER,
    LAUNCH_SHIFT,
    PROGRAM_BITS,
    SLOT_BITS,
    SLOTS_PER_TABLE,
    TAG_SHIFT,
    ShadowTable,
)
from harness.sanitizer.ptx.flow import synchronizes_blocks
from harness.sanitizer.ptx.global_accesses import GlobalAccess
from harness.sanitizer.ptx.instrumented_kernel import (
    LAUNCH_NUMBER_OFFSET,
    MAX_RACE_GROUPS,
    RACE_MASK_OFFSET,
    SHADOW_TABLES_OFFSET,
    RaceGroup,
)
from harness.sanitizer.ptx.instrumented_records import (
    PARAMETER,
    apply_guard,
    select_memory_slot,
    write_record,
)
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.parser import PtxKernel, bits_of_type, is_number, parse_number
from harness.sanitizer.ptx.reader import read_kernel
from harness.sanitizer.violations.kinds import RACES, ViolationKind, to_word_bit

MAY_SYNCHRONIZE = "races, as its blocks may tell each other something"
TOO_WIDE = "races, as it writes values of more than 8 bytes"
REGISTERS = (
    ".reg .b64 %ufb<9>;", ".reg .pred %ufy<4>;", ".reg .b64 %ufrm;", ".reg .b64 %ufrl;",
    ".reg .b64 %ufrs;", ".reg .b64 %ufrt;", ".reg .b16 %ufz;",
)  # fmt: skip
_PLACE, _TAG, _SLOT, _MINE, _OTHER, _WORK, _VALUE, _OLD, _MORE = (f"%ufb{n}" for n in range(9))


def may_synchronize_blocks(module: PtxText, kernel: PtxKernel) -> bool:
    """Return whether blocks may wait for each other; those of a cluster may by its barriers."""
    for statement in kernel.statements:
        if statement.opcode == "mapa" or (
            statement.opcode == "barrier" and "cluster" in statement.modifiers
        ):
            return True
    return synchronizes_blocks(read_kernel(module, kernel))


def is_checked(access: GlobalAccess) -> bool:
    return access.part_size <= 8 or access.verb == "read"


def group_accesses(accesses: Iterable[GlobalAccess]) -> list[RaceGroup]:
    """Put accesses that may share a pointer's memory into one group."""
    groups: list[RaceGroup] = []
    for access in accesses:
        if not is_checked(access):
            continue
        roots, size, verbs = set(access.roots), access.size, {access.verb}
        for other in [group for group in groups if roots.intersection(group.roots)]:
            groups.remove(other)
            roots |= set(other.roots)
            verbs |= set(other.verbs)
            size = min(size, other.piece)
        groups.append(RaceGroup(tuple(sorted(roots)), size, tuple(sorted(verbs))))
    return groups


class RaceInstrumentation:
    """The race checks of one kernel."""

    def __init__(self, kernel: PtxKernel, groups: list[RaceGroup]) -> None:
        self._kinds, self._groups = kernel.register_types, groups

    @property
    def entry_code(self) -> list[str]:
        """Statements at the kernel's start: this block's stamp, with the launch's number."""
        return [
            "mov.b64 %ufrl, 0; mov.b64 %ufrs, 0;",
            f"ld.param.u64 %ufrm, [{PARAMETER}+{RACE_MASK_OFFSET}];",
            f"ld.param.u64 %ufrt, [{PARAMETER}+{SHADOW_TABLES_OFFSET}];",
            "setp.eq.u64 %ufo, %ufrm, 0;",
            "@%ufo bra $UF_START;",
            f"ld.param.u64 %ufd, [{PARAMETER}+{LAUNCH_NUMBER_OFFSET}];",
            "ld.volatile.global.u64 %ufrl, [%ufd];",
            f"shl.b64 %ufrl, %ufrl, {LAUNCH_SHIFT};",
            "mov.u32 %ufh, %ctaid.x; mov.u32 %ufi, %nctaid.y; mov.u32 %ufw, %ctaid.y;",
            "mad.lo.u32 %ufh, %ufh, %ufi, %ufw;",
            "mov.u32 %ufi, %nctaid.z; mov.u32 %ufw, %ctaid.z;",
            "mad.lo.u32 %ufh, %ufh, %ufi, %ufw;",
            f"and.b32 %ufh, %ufh, {(1 << PROGRAM_BITS) - 1};",
            "cvt.u64.u32 %ufd, %ufh;",
            f"shl.b64 %ufd, %ufd, {FLAG_BITS};",
            "or.b64 %ufrs, %ufrl, %ufd;",
            "$UF_START:",
        ]

    def find_group(self, access: GlobalAccess) -> int | None:
        """Return the number of an access's group; None if it is not checked."""
        if not is_checked(access):
            return None
        for number, group in enumerate(self._groups):
            if set(access.roots) <= set(group.roots):
                return number
        return None

    def write_condition(self, group: int, guard: str) -> list[str]:
        """Set %ufp if the group counts in this launch, and the access happens."""
        bit = 1 << min(group, MAX_RACE_GROUPS - 1)
        return [f"and.b64 %ufd, %ufrm, {bit};", "setp.ne.s64 %ufp, %ufd, 0;", *apply_guard(guard)]

    def write_report(
        self, access: GlobalAccess, group: int, site: int, back: str, names: dict[str, str]
    ) -> list[str]:
        """Look at each piece of an access at %ufa; a report is the first bad one's."""
        code: list[str] = []
        report = f"$UF_W{site}"
        piece = self._groups[group].piece
        if access.dynamic_size:
            dynamic = names.get(access.dynamic_size, access.dynamic_size)
            code += [f"cvt.u64.u32 {_MORE}, {dynamic};"]
        if access.verb == "write":
            bit = 1 << 32 + min(group, MAX_RACE_GROUPS - 1)
            code += [f"and.b64 {_WORK}, %ufrm, {bit};", f"setp.ne.s64 %ufy3, {_WORK}, 0;"]
        for first in range(0, access.size, piece):
            if access.dynamic_size:
                code += [f"setp.le.u64 %ufo, {_MORE}, {first};", f"@%ufo bra {back};"]
            code += [
                f"add.s64 {_PLACE}, %ufa, {first};",
                f"shr.u64 {_TAG}, {_PLACE}, {SLOT_BITS};",
                f"mul.lo.s64 {_SLOT}, {_TAG}, {HASH_MULTIPLIER};",
                f"add.s64 {_SLOT}, {_SLOT}, {_PLACE};",
                f"and.b64 {_SLOT}, {_SLOT}, {SLOTS_PER_TABLE - 1};",
                f"shl.b64 {_SLOT}, {_SLOT}, 3;",
                f"add.s64 {_SLOT}, {_SLOT}, %ufrt;",
                f"shl.b64 {_TAG}, {_TAG}, {TAG_SHIFT};",
                f"or.b64 {_MINE}, {_TAG}, %ufrs;",
            ]
            if access.verb == "read":
                code += self._check_read(report)
            elif access.verb == "update":
                code += self._check_update(report)
            else:
                parts = self._split_values(access, first, piece, names)
                code += self._check_store(report, f"$UF_N{site}_{first}", parts)
        code += [f"bra {back};", f"{report}:"]
        operands = [
            f"st.volatile.global.u64 [%ufg+{RecordField.LEFT}], {_OTHER};",
            "mov.u32 %ufh, %nctaid.x; cvt.u64.u32 %ufd, %ufh;",
            *(
                line
                for axis in "yz"
                for line in (
                    f"shl.b64 %ufd, %ufd, 16; mov.u32 %ufh, %nctaid.{axis};",
                    f"cvt.u64.u32 {_WORK}, %ufh; or.b64 %ufd, %ufd, {_WORK};",
                )
            ),
            f"st.volatile.global.u64 [%ufg+{RecordField.RIGHT}], %ufd;",
        ]
        slot = select_memory_slot(site)
        return [*code, *write_record(site, slot, back, f"$UF_H{site}", _PLACE, operands, [])]

    # The three verbs

    def _check_read(self, report: str) -> list[str]:
        return [
            *_exchange_entry(ShadowTable.READERS, _MINE, _OTHER),
            *_compare_block(_OTHER, "%ufy0"),
            *_exchange_entry(ShadowTable.EARLIER_READERS, _OTHER, _WORK, "@%ufy0 "),
            *_load_entry(ShadowTable.WRITERS, _OTHER),
            *_compare_block(_OTHER, "%ufy0"),
            f"and.b64 {_WORK}, {_OTHER}, {CHANGED_FLAG};",
            f"setp.ne.and.s64 %ufy0, {_WORK}, 0, %ufy0;",
            *_go_to(report, "%ufy0", RACES["write", "read"]),
        ]

    def _check_update(self, report: str) -> list[str]:
        return [
            f"or.b64 {_MINE}, {_MINE}, {ATOMIC_FLAG};",
            *_exchange_entry(ShadowTable.WRITERS, _MINE, _OTHER),
            *_compare_block(_OTHER, "%ufy0"),
            f"and.b64 {_WORK}, {_OTHER}, {ATOMIC_FLAG};",
            f"setp.eq.and.s64 %ufy0, {_WORK}, 0, %ufy0;",
            *_go_to(report, "%ufy0", RACES["write", "update"]),
        ]

    def _check_store(
        self, report: str, end: str, parts: list[tuple[int, int, list[str]]]
    ) -> list[str]:
        code = [f"setp.ne.s64 %ufy1, {_PLACE}, {_PLACE};", f"mov.b64 {_VALUE}, 0;"]
        for offset, size, load_part in parts:
            code += [
                *load_part,  # into _WORK
                f"mul.lo.s64 {_VALUE}, {_VALUE}, {HASH_MULTIPLIER};",
                f"add.s64 {_VALUE}, {_VALUE}, {_WORK};",
                f"@%ufy3 ld.volatile.global.u{8 * size} {_OLD}, [{_PLACE}+{offset}];",
                f"@%ufy3 setp.ne.or.s64 %ufy1, {_OLD}, {_WORK}, %ufy1;",
            ]
        return [
            *code,
            f"selp.b64 {_WORK}, {CHANGED_FLAG}, 0, %ufy1;",
            f"or.b64 {_MINE}, {_MINE}, {_WORK};",
            *_exchange_entry(ShadowTable.WRITERS, _MINE, _OTHER),
            f"mul.lo.s64 {_VALUE}, {_VALUE}, {HASH_MULTIPLIER};",
            f"shr.u64 {_VALUE}, {_VALUE}, {64 - LAUNCH_SHIFT};",
            f"or.b64 {_VALUE}, {_VALUE}, {_TAG};",
            f"or.b64 {_VALUE}, {_VALUE}, %ufrl;",
            *_exchange_entry(ShadowTable.VALUES, _VALUE, _OLD),
            *_compare_bits(_OLD, _VALUE, "%ufy2", 1),  # another value
            *_compare_block(_OTHER, "%ufy0"),
            f"and.b64 {_WORK}, {_OTHER}, {ATOMIC_FLAG};",
            f"setp.ne.and.s64 %ufo, {_WORK}, 0, %ufy0;",
            *_go_to(report, "%ufo", RACES["update", "write"]),
            "and.pred %ufo, %ufy0, %ufy2;",
            *_go_to(report, "%ufo", RACES["write", "write"]),
            # A block that came between our two exchanges has replaced our entry.
            *_load_entry(ShadowTable.WRITERS, _OTHER),
            *_compare_block(_OTHER, "%ufy0"),
            f"and.b64 {_WORK}, {_OTHER}, {ATOMIC_FLAG};",
            f"setp.eq.and.s64 %ufy0, {_WORK}, 0, %ufy0;",
            "and.pred %ufo, %ufy0, %ufy2;",
            *_go_to(report, "%ufo", RACES["write", "write"]),
            f"@!%ufy1 bra {end};",
            *(
                line
                for table in (ShadowTable.READERS, ShadowTable.EARLIER_READERS)
                for line in (
                    *_load_entry(table, _OTHER),
                    *_compare_block(_OTHER, "%ufy0"),
                    *_go_to(report, "%ufy0", RACES["read", "write"]),
                )
            ),
            f"{end}:",
        ]

    # Values

    def _split_values(
        self, access: GlobalAccess, first: int, piece: int, names: dict[str, str]
    ) -> list[tuple[int, int, list[str]]]:
        """Return for each part of a piece its offset in it, its bytes, and how _WORK gets it."""
        size = min(piece, access.part_size)
        parts = []
        for offset in range(0, piece, size):
            at = first + offset
            value = access.values[at // access.part_size]
            shift = 8 * (at % access.part_size)
            parts.append((offset, size, self._read_value(value, shift, size, names)))
        return parts

    def _read_value(self, value: str, shift: int, size: int, names: dict[str, str]) -> list[str]:
        mask = (1 << 8 * size) - 1
        if is_number(value):
            return [f"mov.b64 {_WORK}, {parse_number(value) >> shift & mask};"]
        register, bits = names.get(value, value), bits_of_type(self._kinds[value])
        code = {
            64: [f"mov.b64 {_WORK}, {register};"],
            32: [f"mov.b32 %ufi, {register};", f"cvt.u64.u32 {_WORK}, %ufi;"],
            16: [f"mov.b16 %ufz, {register};", f"cvt.u64.u16 {_WORK}, %ufz;"],
        }[bits]
        code += [f"shr.u64 {_WORK}, {_WORK}, {shift};"] if shift else []
        code += [f"and.b64 {_WORK}, {_WORK}, {mask};"] if 8 * size < bits else []
        return code


# Entries


def _find_place(table: ShadowTable) -> str:
    return f"[{_SLOT}+{8 * SLOTS_PER_TABLE * table}]"


def _exchange_entry(table: ShadowTable, entry: str, before: str, guard: str = "") -> list[str]:
    return [f"{guard}atom.relaxed.gpu.global.exch.b64 {before}, {_find_place(table)}, {entry};"]


def _load_entry(table: ShadowTable, entry: str) -> list[str]:
    return [f"ld.volatile.global.u64 {entry}, {_find_place(table)};"]


def _compare_block(entry: str, predicate: str) -> list[str]:
    """Set a predicate if an entry is of the same address and launch, and of another block."""
    return _compare_bits(entry, _MINE, predicate, 1 << FLAG_BITS)


def _compare_bits(entry: str, own: str, predicate: str, first: int) -> list[str]:
    """Set a predicate if two entries differ by `first` at least, in the program's bits alone."""
    return [
        f"xor.b64 {_WORK}, {entry}, {own};",
        f"sub.s64 {_WORK}, {_WORK}, {first};",
        f"setp.lt.u64 {predicate}, {_WORK}, {(1 << LAUNCH_SHIFT) - first};",
    ]


def _go_to(report: str, predicate: str, kind: ViolationKind) -> list[str]:
    return [f"@{predicate} mov.b32 %ufw, {to_word_bit(kind)};", f"@{predicate} bra {report};"]
