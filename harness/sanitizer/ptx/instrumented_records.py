"""The record of a report, written by the kernel itself; the layout is that of `report_assembly`."""

from __future__ import annotations

from harness.sanitizer.gpu.report_assembly import (
    MAX_SITES,
    RECORD_BYTES,
    RECORDS_PER_SITE,
    KernelTable,
    RecordField,
)
from harness.sanitizer.ptx.parser import PtxStatement

PARAMETER = "unfix_checks"
_HALF = MAX_SITES // 2
REGISTERS = (
    ".reg .b64 %ufa;", ".reg .b64 %ufd;", ".reg .b64 %ufs;", ".reg .b64 %ufe;", ".reg .b64 %uft;",
    ".reg .b64 %ufg;", ".reg .b32 %ufc;", ".reg .b32 %ufw;", ".reg .b32 %ufh;", ".reg .b32 %ufi;",
    ".reg .pred %ufp;", ".reg .pred %ufo;", ".reg .pred %ufk;",
)  # fmt: skip


def make_guard(statement: PtxStatement, names: dict[str, str]) -> str:
    """Return the predicate that a statement has, as text in front of another one."""
    if not statement.predicate:
        return ""
    word = names.get(statement.predicate, statement.predicate)
    return f"@{'!' * statement.is_negated}{word} "


def select_place_slot(site: int, has_memory_checks: bool) -> int:
    """Return the slot of the reports of where a site's access goes."""
    return site % (_HALF if has_memory_checks else MAX_SITES)


def select_memory_slot(site: int) -> int:
    """Return the slot of the reports of races and uninitialized memory: never that of a place."""
    return _HALF + site % _HALF


def write_record(
    site: int,
    slot: int,
    without_table: str,
    end: str,
    address: str,
    operands: list[str],
    word: list[str],
) -> list[str]:
    """Write a record, if the slot has room for one more; `end` is the label behind it.

    `without_table`: where a launch without a report table goes. `word` sets %ufw, and `operands`
    store the two more numbers of the record at %ufg.
    """
    code = [
        f"ld.param.u64 %uft, [{PARAMETER}];",
        "setp.eq.u64 %ufo, %uft, 0;",
        f"@%ufo bra {without_table};",
        f"atom.global.add.u32 %ufc, [%uft+{KernelTable.COUNTS + 4 * slot}], 1;",
        f"setp.ge.u32 %ufo, %ufc, {RECORDS_PER_SITE};",
        f"@%ufo bra {end};",
        *word,
        f"ld.global.u64 %ufg, [%uft+{KernelTable.RECORDS}];",
        f"mul.wide.u32 %ufd, %ufc, {RECORD_BYTES};",
        "add.s64 %ufg, %ufg, %ufd;",
        f"add.s64 %ufg, %ufg, {slot * RECORDS_PER_SITE * RECORD_BYTES};",
        f"ld.param.u64 %ufd, [{PARAMETER}+8];",
        f"st.volatile.global.u64 [%ufg+{RecordField.LAUNCH}], %ufd;",
        f"st.volatile.global.u64 [%ufg+{RecordField.ADDRESS}], {address};",
        f"st.volatile.global.u32 [%ufg+{RecordField.WORD}], %ufw;",
        f"mov.u32 %ufh, {site};",
        f"st.volatile.global.u32 [%ufg+{RecordField.SITE}], %ufh;",
    ]
    for axis, field in zip("xyz", (RecordField.X, RecordField.Y, RecordField.Z), strict=True):
        code += [
            f"mov.u32 %ufh, %ctaid.{axis};",
            f"st.volatile.global.u32 [%ufg+{int(field)}], %ufh;",
        ]
    code += [
        "mov.u32 %ufh, %tid.z;", "mov.u32 %ufi, %ntid.y;", "mul.lo.u32 %ufh, %ufh, %ufi;",
        "mov.u32 %ufi, %tid.y;", "add.u32 %ufh, %ufh, %ufi;",
        "mov.u32 %ufi, %ntid.x;", "mul.lo.u32 %ufh, %ufh, %ufi;",
        "mov.u32 %ufi, %tid.x;", "add.u32 %ufh, %ufh, %ufi;",
        f"st.volatile.global.u32 [%ufg+{RecordField.THREAD}], %ufh;",
        "mov.u32 %ufh, %ntid.y;", "shl.b32 %ufh, %ufh, 16;", "mov.u32 %ufi, %ntid.x;",
        "or.b32 %ufh, %ufh, %ufi;",
        f"st.volatile.global.u32 [%ufg+{RecordField.SIDES}], %ufh;",
        *operands,
        "membar.sys;",
        "mov.u32 %ufh, 1;",
        f"st.volatile.global.u32 [%ufg+{RecordField.WRITTEN}], %ufh;",
        "membar.sys;",
        f"ld.global.u64 %ufg, [%uft+{KernelTable.BELL}];",
        "st.volatile.global.u32 [%ufg], %ufh;",
        f"{end}:",
    ]  # fmt: skip
    return code
