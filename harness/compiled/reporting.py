"""The assembly that puts a fault into the report: a few instructions where there is none.

Each thread has its lanes' words (0: all is well) or-ed and passes on. It writes its first bad
lane down as a record in the host's memory, which is read without stopping the device, and can be
read when it died. What an integer was made of that wrapped goes along.
"""

from __future__ import annotations

from enum import IntEnum

SITES = 128  # of a kernel: those further on share
RECORDS = 4  # a site's; what comes after them is counted only
RECORD_BYTES = 64


class Block(IntEnum):
    """A kernel's table on the device, in byte offsets; behind it a count for each site."""

    RECORDS = 0
    BELL = 8
    MEMORY = 16  # where the table is of what is known of memory
    COUNTS = 24


BLOCK_BYTES = Block.COUNTS + 4 * SITES


class Record(IntEnum):
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


def constraints(pack: int, wide: int) -> str:
    return ",".join(["=r"] * pack + ["r"] * pack + ["l"] * (wide + 2) * pack)


def assembly(site: int, pack: int, wide: int) -> str:
    """For `pack` lanes at once: words, `wide` numbers of 64 bits, and as often table and launch.

    The numbers are an address, and what was to be combined where something can have wrapped.
    """
    of = [[f"${(1 + number) * pack + lane}" for lane in range(pack)] for number in range(1 + wide)]
    words, *numbers = of
    report, launch = f"${(2 + wide) * pack}", f"${(3 + wide) * pack}"
    names = ("at", "left", "right")[:wide]
    places = (Record.ADDRESS, Record.LEFT, Record.RIGHT)[:wide]
    lines = [".reg .pred bad, skip", ".reg .b32 word, count, here"]
    lines += [f".reg .b64 to, far, {', '.join(names)}", f"mov.b32 word, {words[0]}"]
    lines += [f"or.b32 word, word, {other}" for other in words[1:]]
    lines += ["setp.eq.b32 skip, word, 0", "@skip bra DONE", f"mov.b32 word, {words[-1]}"]
    lines += [f"mov.b64 {name}, {lanes[-1]}" for name, lanes in zip(names, numbers, strict=True)]
    for lane in range(pack - 2, -1, -1):
        lines += [f"setp.ne.b32 bad, {words[lane]}, 0"]
        lines += [f"selp.b32 word, {words[lane]}, word, bad"]
        lines += [
            f"selp.b64 {name}, {lanes[lane]}, {name}, bad"
            for name, lanes in zip(names, numbers, strict=True)
        ]
    slot = site % SITES
    lines += [
        f"atom.global.add.u32 count, [{report}+{Block.COUNTS + 4 * slot}], 1",
        f"setp.ge.u32 skip, count, {RECORDS}",
        "@skip bra DONE",
        f"ld.global.u64 to, [{report}+{int(Block.RECORDS)}]",
        f"mul.wide.u32 far, count, {RECORD_BYTES}",
        "add.s64 to, to, far",
        f"add.s64 to, to, {slot * RECORDS * RECORD_BYTES}",
        f"st.volatile.global.u64 [to+{int(Record.LAUNCH)}], {launch}",
        f"st.volatile.global.u32 [to+{int(Record.WORD)}], word",
        f"mov.u32 here, {site}",
        f"st.volatile.global.u32 [to+{int(Record.SITE)}], here",
    ]
    lines += [
        f"st.volatile.global.u64 [to+{int(place)}], {name}"
        for name, place in zip(names, places, strict=True)
    ]
    for axis, place in zip("xyz", (Record.X, Record.Y, Record.Z), strict=True):
        lines += [f"mov.u32 here, %ctaid.{axis}", f"st.volatile.global.u32 [to+{int(place)}], here"]
    lines += [
        "membar.sys",
        "mov.u32 here, 1",
        f"st.volatile.global.u32 [to+{int(Record.WRITTEN)}], here",
        "membar.sys",
        f"ld.global.u64 far, [{report}+{int(Block.BELL)}]",
        "st.volatile.global.u32 [far], here",
    ]
    ends = [f"mov.b32 ${lane}, 0" for lane in range(pack)]
    return f"{{ {'; '.join(lines)}; DONE: {'; '.join(ends)}; }}"
