"""The entries of blocks in PTX: which accesses have entries in a launch, and their report.

A block is a program of `gpu/card_entries`. A kernel whose blocks may wait for each other is not
checked. Threads of one block are not distinguished; the executor does that.

Accesses that may meet, by the parameters of their pointers, are one `RaceGroup`, and are checked
in pieces of the size of its smallest access. The launch says which groups count (`check_values`):
those that are written, and those whose memory overlaps a written one's.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator

from harness.sanitizer.gpu.card_entries import CardEntries, CardGranule
from harness.sanitizer.gpu.report_assembly import RecordField
from harness.sanitizer.gpu.shadow_entries import (
    FLAG_BITS,
    HASH_MULTIPLIER,
    LAUNCH_SHIFT,
    PROGRAM_BITS,
    SLOTS_PER_TABLE,
    ShadowTable,
)
from harness.sanitizer.ptx.check_text import CheckText
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
    select_memory_slot,
    write_record,
)
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.parser import PtxKernel, bits_of_type, is_number, parse_number
from harness.sanitizer.ptx.reader import read_kernel
from harness.sanitizer.violations.kinds import ViolationKind, to_word_bit

MAY_SYNCHRONIZE = "races, as its blocks may tell each other something"
TOO_WIDE = "races, as it writes values of more than 8 bytes"
REGISTERS = (
    ".reg .b64 %ufb<2>;", ".reg .b64 %ufrm;", ".reg .b64 %ufrl;", ".reg .b64 %ufrs;",
    ".reg .b64 %ufrt;", ".reg .b16 %ufz;",
)  # fmt: skip
_PLACE, _OTHER = "%ufb0", "%ufb1"  # of a report
_OPCODES = {
    opcode.partition(".")[0]: opcode
    for opcode in "add.s64 sub.s64 mul.lo.s64 shl.b64 shr.u64 and.b64 or.b64 xor.b64".split()
}


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
    """What the race checks of one kernel share."""

    def __init__(self, kernel: PtxKernel, groups: list[RaceGroup]) -> None:
        self.kinds, self.groups = kernel.register_types, groups

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
        for number, group in enumerate(self.groups):
            if set(access.roots) <= set(group.roots):
                return number
        return None


class PtxRaceEntries(CardEntries[str]):
    """The entries of one access, whose address is %ufa."""

    access: GlobalAccess
    code: CheckText
    guard: str
    names: dict[str, str]
    number: int

    def __init__(self, races: RaceInstrumentation | None) -> None:
        self._races = races

    @abstractmethod
    def branch_to(self, condition: str, label: str, back: str, lines: list[str]) -> None: ...

    def granules(self) -> Iterator[CardGranule[str]]:
        """Yield each piece, in code for launches in which the access's group counts."""
        races, code, access = self._races, self.code, self.access
        group = races.find_group(access) if races is not None else None
        if races is None or group is None:
            return
        bit, piece = min(group, MAX_RACE_GROUPS - 1), races.groups[group].piece
        counts = self.is_nonzero(self.combine("and", "%ufrm", 1 << bit))
        counts = code.apply_guard(self.guard, counts)
        back, self._report_label = f"$UF_D{self.number}", f"$UF_W{self.number}"
        outer, code.lines = code.lines, []
        is_read = ""
        if access.verb == "write":
            is_read = self.is_nonzero(self.combine("and", "%ufrm", 1 << MAX_RACE_GROUPS + bit))
        dynamic = access.dynamic_size
        size = code.compute("cvt.u64.u32", self.names.get(dynamic, dynamic)) if dynamic else ""
        for first in range(0, access.size, piece):
            if size:
                code.emit(f"@{code.ask('setp.le.u64', size, first)} bra {back};")
            code.emit(f"add.s64 {_PLACE}, %ufa, {first};")
            granule = self.find_granule(first, _PLACE)
            granule.slot = self.combine("add", granule.slot, "%ufrt")
            if access.verb == "write":
                self._compare_values(granule, piece, is_read, races.kinds)
            yield granule
        code.emit(f"bra {back};", f"{self._report_label}:", *self._write_race_record(back))
        code.emit(f"bra {back};")
        lines, code.lines = code.lines, outer
        self.branch_to(counts, f"$UF_C{self.number}", back, lines)

    def _write_race_record(self, back: str) -> list[str]:
        operands = [
            f"st.volatile.global.u64 [%ufg+{RecordField.LEFT}], {_OTHER};",
            "mov.u32 %ufh, %nctaid.x; cvt.u64.u32 %ufd, %ufh;",
            *(
                line
                for axis in "yz"
                for line in (
                    f"shl.b64 %ufd, %ufd, 16; mov.u32 %ufh, %nctaid.{axis};",
                    "cvt.u64.u32 %ufs, %ufh; or.b64 %ufd, %ufd, %ufs;",
                )
            ),
            f"st.volatile.global.u64 [%ufg+{RecordField.RIGHT}], %ufd;",
        ]
        slot, end = select_memory_slot(self.number), f"$UF_H{self.number}"
        return write_record(self.number, slot, back, end, _PLACE, operands, [])

    def _compare_values(
        self, granule: CardGranule[str], piece: int, is_read: str, kinds: dict[str, str]
    ) -> None:
        """Compare what is written with the memory, if this launch reads it; hash it."""
        code, part, changes, written_hash = self.code, min(piece, self.access.part_size), [], "0"
        for offset in range(0, piece, part):
            written = self._read_value(granule.first + offset, part, kinds)
            written_hash = self.combine("mul", written_hash, HASH_MULTIPLIER)
            written_hash = self.combine("add", written_hash, written)
            before = code.compute("mov.b64", 0)
            load = f"ld.volatile.global.u{8 * part} {before}, [{_PLACE}+{offset}];"
            code.emit(f"@{is_read} {load}")
            changes.append(code.ask("setp.ne.and.s64", before, written, is_read))
        granule.written, granule.changes = written_hash, functools.reduce(code.either, changes)

    def _read_value(self, first: int, size: int, kinds: dict[str, str]) -> str:
        """Write code for `size` bytes that the access writes, from the byte `first` on."""
        code, part_size = self.code, self.access.part_size
        value, shift = self.access.values[first // part_size], 8 * (first % part_size)
        mask = (1 << 8 * size) - 1
        if is_number(value):
            return code.compute("mov.b64", parse_number(value) >> shift & mask)
        register, bits = self.names.get(value, value), bits_of_type(kinds[value])
        if bits == 64:
            number = code.compute("mov.b64", register)
        else:
            narrow = {32: "%ufi", 16: "%ufz"}[bits]
            code.emit(f"mov.b{bits} {narrow}, {register};")
            number = code.compute(f"cvt.u64.u{bits}", narrow)
        number = code.compute("shr.u64", number, shift) if shift else number
        return code.compute("and.b64", number, mask) if 8 * size < bits else number

    def find_reads(self, granule: CardGranule[str], where: str | None = None) -> Iterator[str]:
        """Branch over all that follows where the reads do not matter."""
        end = f"$UF_N{self.number}_{granule.first}"
        if where is not None:
            self.code.emit(f"@!{where} bra {end};")
            yield from super().find_reads(granule, where)
            self.code.emit(f"{end}:")

    def report_race(
        self, kind: ViolationKind, granule: CardGranule[str], entry: str, where: str | None = None
    ) -> None:
        code, is_race = self.code, self.is_other_program(entry, granule.entry)
        if where is not None:
            is_race = code.both(is_race, where)
        code.emit(
            f"@{is_race} mov.b64 {_OTHER}, {entry};",
            f"@{is_race} mov.b32 %ufw, {to_word_bit(kind)};",
            f"@{is_race} bra {self._report_label};",
        )

    # Of entries

    def combine(self, operation: str, left: str, right: str | int) -> str:
        return self.code.compute(_OPCODES[operation], left, right)

    def is_below(self, number: str, limit: int) -> str:
        return self.code.ask("setp.lt.u64", number, limit)

    def is_nonzero(self, number: str) -> str:
        return self.code.ask("setp.ne.s64", number, 0)

    def negate(self, condition: str) -> str:
        return self.code.negate(condition)

    def add_flag(self, entry: str, flag: int, where: str) -> str:
        return self.combine("or", entry, self.code.compute("selp.b64", flag, 0, where))

    def get_stamp(self, of_program: bool) -> str:
        return "%ufrs" if of_program else "%ufrl"

    def exchange(
        self, table: ShadowTable, granule: CardGranule[str], entry: str, where: str | None = None
    ) -> str:
        guard = "" if where is None else f"@{where} "
        place = self._find_place(table, granule)
        return self.code.compute("atom.relaxed.gpu.global.exch.b64", place, entry, guard=guard)

    def load(self, table: ShadowTable, granule: CardGranule[str], where: str | None = None) -> str:
        return self.code.compute("ld.volatile.global.u64", self._find_place(table, granule))

    def _find_place(self, table: ShadowTable, granule: CardGranule[str]) -> str:
        return f"[{granule.slot}+{8 * SLOTS_PER_TABLE * table}]"
