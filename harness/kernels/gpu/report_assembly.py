"""The assembly that puts a fault into the report: a few instructions where there is none.

Each thread has its lanes' words (0: all is well) or-ed and passes on. It writes its first bad
lane down as a record in the host's memory, which is read without stopping the device, and can be
read when it died. What an integer was made of that wrapped goes along.
"""

from __future__ import annotations

from enum import IntEnum

MAX_SITES = 128  # of a kernel: those further on share
RECORDS_PER_SITE = 4  # a site's; what comes after them is counted only
RECORD_BYTES = 64


class KernelTable(IntEnum):
    """A kernel's table on the device, in byte offsets; behind it a count for each site."""

    RECORDS = 0
    BELL = 8
    STORAGE_TABLE = 16  # where the table is of what is known of memory
    COUNTS = 24


KERNEL_TABLE_BYTES = KernelTable.COUNTS + 4 * MAX_SITES


class RecordField(IntEnum):
    """Byte offsets; WRITTEN is set last."""

    WRITTEN = 0
    LAUNCH = 8
    ADDRESS = 16
    WORD = 24
    SITE = 28
    X = 32
    Y = 36
    Z = 40
    LEFT = 48
    RIGHT = 56


def build_constraints(lane_count: int, int64_count: int) -> str:
    return ",".join(
        ["=r"] * lane_count + ["r"] * lane_count + ["l"] * (int64_count + 2) * lane_count
    )


def build_assembly(site: int, lane_count: int, int64_count: int) -> str:
    """For `pack` lanes at once: words, `wide` numbers of 64 bits, and as often table and launch.

    The numbers are an address, and what was to be combined where something can have wrapped.
    """
    of = [
        [f"${(1 + number) * lane_count + lane}" for lane in range(lane_count)]
        for number in range(1 + int64_count)
    ]
    words, *numbers = of
    report, launch = f"${(2 + int64_count) * lane_count}", f"${(3 + int64_count) * lane_count}"
    names = ("at", "left", "right")[:int64_count]
    places = (RecordField.ADDRESS, RecordField.LEFT, RecordField.RIGHT)[:int64_count]
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
        f"st.volatile.global.u64 [to+{int(place)}], {name}"
        for name, place in zip(names, places, strict=True)
    ]
    for axis, place in zip("xyz", (RecordField.X, RecordField.Y, RecordField.Z), strict=True):
        lines += [f"mov.u32 here, %ctaid.{axis}", f"st.volatile.global.u32 [to+{int(place)}], here"]
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
