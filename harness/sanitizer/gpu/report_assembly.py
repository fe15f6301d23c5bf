"""The assembly that records a violation, and the layout of its records.

Each thread ors the words of its lanes; 0 means that nothing is wrong, and the thread goes on after
a few instructions. Otherwise it writes its first bad lane as a record into pinned memory of the
host, which can be read while the device runs and after it is lost. Invariant: WRITTEN is stored
last, behind a fence, so that the host never reads half a record; then the bell is set, one word
that the host polls. Example: the third report of site 2 goes to slot 2 * 4 + 2 of the kernel's
records; the fifth is only counted.
"""

from __future__ import annotations

from enum import IntEnum

MAX_SITES = 128  # sites of a kernel; site 128 shares the slots of site 0
RECORDS_PER_SITE = 4  # further reports are only counted
RECORD_BYTES = 64


class KernelTable(IntEnum):
    """Byte offsets in a kernel's table on the device."""

    RECORDS = 0  # the address of its records
    BELL = 8  # the address of the bell
    STORAGE_TABLE = 16  # the address of the table of known storages
    COUNTS = 24  # the number of reports of each site


KERNEL_TABLE_BYTES = KernelTable.COUNTS + 4 * MAX_SITES


class RecordField(IntEnum):
    """Byte offsets in a record."""

    WRITTEN = 0
    SIDES = 4  # of CUDA's kernels: the block's x (16 bits) and y
    LAUNCH = 8
    ADDRESS = 16
    WORD = 24
    SITE = 28
    X = 32
    Y = 36
    Z = 40
    THREAD = 44  # of CUDA's kernels: the thread's number in its block
    LEFT = 48
    RIGHT = 56


def build_constraints(lane_count: int, int64_count: int) -> str:
    return ",".join(
        ["=r"] * lane_count + ["r"] * lane_count + ["l"] * (int64_count + 2) * lane_count
    )


def build_assembly(site: int, lane_count: int, int64_count: int) -> str:
    """Build assembly for a thread's lanes: words, int64 numbers, each lane's table and launch.

    The numbers are an address, and two operands for a report that has some.
    """
    inputs = [
        [f"${(1 + number) * lane_count + lane}" for lane in range(lane_count)]
        for number in range(1 + int64_count)
    ]
    words, *numbers = inputs
    report, launch = f"${(2 + int64_count) * lane_count}", f"${(3 + int64_count) * lane_count}"
    names = ("address", "left", "right")[:int64_count]
    fields = (RecordField.ADDRESS, RecordField.LEFT, RecordField.RIGHT)[:int64_count]
    lines = [".reg .pred bad, skip", ".reg .b32 word, count, here"]
    lines += [f".reg .b64 to, far, {', '.join(names)}", f"mov.b32 word, {words[0]}"]
    lines += [f"or.b32 word, word, {other}" for other in words[1:]]
    lines += ["setp.eq.b32 skip, word, 0", "@skip bra DONE", f"mov.b32 word, {words[-1]}"]
    lines += [f"mov.b64 {name}, {lanes[-1]}" for name, lanes in zip(names, numbers, strict=True)]
    for lane in range(lane_count - 2, -1, -1):
        lines += [f"setp.ne.b32 bad, {words[lane]}, 0"]
        lines += [f"selp.b32 word, {words[lane]}, word, bad"]
        lines += [
            f"selp.b64 {name}, {lanes[lane]}, {name}, bad"
            for name, lanes in zip(names, numbers, strict=True)
        ]
    slot = site % MAX_SITES
    lines += [
        f"atom.global.add.u32 count, [{report}+{KernelTable.COUNTS + 4 * slot}], 1",
        f"setp.ge.u32 skip, count, {RECORDS_PER_SITE}",
        "@skip bra DONE",
        f"ld.global.u64 to, [{report}+{int(KernelTable.RECORDS)}]",
        f"mul.wide.u32 far, count, {RECORD_BYTES}",
        "add.s64 to, to, far",
        f"add.s64 to, to, {slot * RECORDS_PER_SITE * RECORD_BYTES}",
        f"st.volatile.global.u64 [to+{int(RecordField.LAUNCH)}], {launch}",
        f"st.volatile.global.u32 [to+{int(RecordField.WORD)}], word",
        f"mov.u32 here, {site}",
        f"st.volatile.global.u32 [to+{int(RecordField.SITE)}], here",
    ]
    lines += [
        f"st.volatile.global.u64 [to+{int(field)}], {name}"
        for name, field in zip(names, fields, strict=True)
    ]
    for axis, field in zip("xyz", (RecordField.X, RecordField.Y, RecordField.Z), strict=True):
        lines += [f"mov.u32 here, %ctaid.{axis}", f"st.volatile.global.u32 [to+{int(field)}], here"]
    lines += [
        "membar.sys",
        "mov.u32 here, 1",
        f"st.volatile.global.u32 [to+{int(RecordField.WRITTEN)}], here",
        "membar.sys",
        f"ld.global.u64 far, [{report}+{int(KernelTable.BELL)}]",
        "st.volatile.global.u32 [far], here",
    ]
    ends = [f"mov.b32 ${lane}, 0" for lane in range(lane_count)]
    return f"{{ {'; '.join(lines)}; DONE: {'; '.join(ends)}; }}"
