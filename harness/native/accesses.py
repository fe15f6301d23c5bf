"""The checks of an access, in machine code: one function for each verb and size, compiled once.

A kernel hands over a block of addresses, the lanes that are on, and the memory that its pointers
may reach. What is refused is put down in the report and the kernel returns; words are Python's.
Every check of the checker on a CPU is here and in `races`, and nowhere else.
"""

from __future__ import annotations

from harness.native.layout import (
    MOST_WRAPS,
    Context,
    Fault,
    Region,
    Wrap,
)
from harness.native.races import Races
from harness.native.text import Function

SIZES = (1, 2, 4, 8)
_TYPES = "ptr, i64, ptr, i64, ptr, ptr, ptr, ptr, ptr"


def declarations(text: str) -> str:
    """What a kernel's module says of those of these functions that it calls."""
    types = {"unfix_wrap": "ptr, i64, i64, i64, i64"}
    lines = [
        f"declare i32 @{name}({types.get(name, _TYPES)})" for name in names() if f"@{name}(" in text
    ]
    return "\n".join(lines) + "\n"


def module() -> str:
    parts = [str(_find()), str(_wrap())]
    for verb in ("read", "write", "update"):
        parts += [str(_Access(verb, size).function) for size in SIZES]
    return "\n".join(parts)


def names() -> list[str]:
    verbs = ("read", "write", "update")
    return [*(f"unfix_{verb}{size}" for verb in verbs for size in SIZES), "unfix_wrap"]


def _find() -> Function:
    """The known memory that an address lies in, or null."""
    code = Function("define internal ptr @find(ptr %context, i64 %address)")
    table = code.pointer(code.field("%context", Context.STORAGES))
    with code.loop(code.field("%context", Context.STORAGE_COUNT)) as index:
        region = code.at(table, f"[{len(Region)} x i64]", index)
        after = code.let(f"icmp uge i64 %address, {code.field(region, Region.START)}")
        before = code.let(f"icmp ult i64 %address, {code.field(region, Region.END)}")
        with code.when(code.let(f"and i1 {after}, {before}"), leaves=True):
            code.do(f"ret ptr {region}")
    code.do("ret ptr null")
    return code


def _wrap() -> Function:
    """Remember an operation whose true value did not fit; the number that stands for it."""
    code = Function(
        "define i32 @unfix_wrap(ptr %context, i64 %site, i64 %left, i64 %right, i64 %result)"
    )
    only = code.field("%context", Context.ONLY)
    with code.when(code.let(f"icmp ne i64 {only}, 0")):
        counts = code.load("i8", code.at(code.pointer(only), "i8", "%site"))
        with code.when(code.let(f"icmp eq i8 {counts}, 0"), leaves=True):
            code.do("ret i32 0")
    count = code.field("%context", Context.WRAP_COUNT)
    full = code.let(f"icmp uge i64 {count}, {MOST_WRAPS - 2}")
    number = code.let(f"select i1 {full}, i64 {count}, i64 {code.let(f'add i64 {count}, 1')}")
    code.store("i64", number, code.at("%context", "i64", Context.WRAP_COUNT))
    table = code.pointer(code.field("%context", Context.WRAPS))
    entry = code.at(table, f"[{len(Wrap)} x i64]", number)
    for place, value in (
        (Wrap.SITE, "%site"),
        (Wrap.LEFT, "%left"),
        (Wrap.RIGHT, "%right"),
        (Wrap.RESULT, "%result"),
    ):
        code.store("i64", value, code.at(entry, "i64", place))
    code.do(f"ret i32 {code.let(f'trunc i64 {number} to i32')}")
    return code


class _Access(Races):
    """Reads, stores or atomic updates of elements of one size."""

    def __init__(self, verb: str, size: int) -> None:
        super().__init__(verb, size)
        code = self._code
        self._no_wraps()
        self._lanes_of_unknown_origin()
        self._within()
        if self.verb != "write":
            self._inside_fences(Region.READ_FENCES, Fault.FENCE_READ)
        if self.verb != "read":
            self._inside_fences(Region.WRITE_FENCES, Fault.FENCE_WRITE)
        self._note_writing()
        {"read": self._watch_reads, "write": self._watch_stores, "update": self._watch_atomics}[
            self.verb
        ]()
        if self.verb == "read":
            self._read()
        elif self.verb == "write":
            self._store()
        code.do("ret i32 0")

    # The checks

    def _no_wraps(self) -> None:
        code = self._code
        with code.when(code.let("icmp ne ptr %wraps, null")), self._each_on() as (index, address):
            wrap = code.load("i32", code.at("%wraps", "i32", index))
            with code.when(code.let(f"icmp ne i32 {wrap}, 0"), leaves=True):
                self._told(Fault.WRAPPED, address, "1", code.let(f"zext i32 {wrap} to i64"))

    def _lanes_of_unknown_origin(self) -> None:
        """Pointers loaded from memory, or of several tensors: each lane where it points."""
        code = self._code
        with code.when(code.let("icmp eq ptr %region, null"), leaves=True):
            with self._each_on() as (index, address):
                found = code.let(f"call ptr @find(ptr %context, i64 {address})")
                with code.when(code.let(f"icmp eq ptr {found}, null"), leaves=True):
                    self._told(Fault.OUTSIDE, address, "1", "0")
                value = code.at("%values", self.kind, index)
                place = code.at("%addresses", "i64", index)
                wrong = code.let(
                    f"call i32 @{self.name}(ptr %context, i64 %site, ptr {found}, i64 1,"
                    f" ptr {place}, ptr null, ptr null, ptr {value}, ptr null)"
                )
                with code.when(code.let(f"icmp ne i32 {wrong}, 0"), leaves=True):
                    code.do("ret i32 1")
            if self.verb == "read":
                self._fill_what_is_off()
            elif self.verb == "write":
                self._no_lane_against_lane()
            code.do("ret i32 0")

    def _within(self) -> None:
        code = self._code
        start, end = (code.field("%region", place) for place in (Region.START, Region.END))
        room = code.let(f"sub i64 {code.let(f'sub i64 {end}, {start}')}, {self.size}")
        small = code.let(f"icmp slt i64 {room}, 0")
        with self._each_on() as (_, address):
            far = code.let(f"icmp ugt i64 {code.let(f'sub i64 {address}, {start}')}, {room}")
            self._count(code.let(f"or i1 {far}, {small}"), address)
            code.add_to(self._on, "1")
        self._refuse(Fault.OUTSIDE)

    def _inside_fences(self, place: Region, fault: Fault) -> None:
        code = self._code
        table = code.field("%region", place)
        with code.when(code.let(f"icmp ne i64 {table}, 0")):
            masks = code.pointer(table)
            mask = code.field(masks, code.field("%context", Context.ORDINAL))  # type: ignore[arg-type]
            allowed = code.pointer(mask)
            last = code.let(f"sub i64 {code.field('%region', Region.STORAGE_SIZE)}, 1")
            with (
                code.when(code.let(f"icmp ne i64 {mask}, 0")),
                self._each_on() as (_, address),
            ):
                offset = self._offset(address)
                end = code.let(f"add i64 {offset}, {self.size - 1}")
                end = code.let(f"call i64 @llvm.umin.i64(i64 {end}, i64 {last})")
                at_start = code.load("i8", code.at(allowed, "i8", offset))
                at_end = code.load("i8", code.at(allowed, "i8", end))
                both = code.let(f"and i8 {at_start}, {at_end}")
                self._count(code.let(f"icmp eq i8 {both}, 0"), address)
            self._refuse(fault)

    def _note_writing(self) -> None:
        code = self._code
        shadow = code.field("%region", Region.UNWRITTEN)
        with code.when(code.let(f"icmp ne i64 {shadow}, 0")):
            unwritten = code.pointer(shadow)
            if self.verb != "write":
                with self._each_on() as (_, address):
                    empty = code.load("i8", code.at(unwritten, "i8", self._offset(address)))
                    self._count(code.let(f"icmp ne i8 {empty}, 0"), address)
                self._refuse(Fault.UNWRITTEN)
            if self.verb != "read":
                with self._each_on() as (_, address):
                    place = code.at(unwritten, "i8", self._offset(address))
                    code.do(f"store {self.kind} 0, ptr {place}, align 1")

    # The access itself

    def _read(self) -> None:
        code = self._code
        with self._each_on() as (index, address):
            value = code.load(self.kind, code.pointer(address) + ", align 1")
            code.store(self.kind, value, code.at("%values", self.kind, index))
        self._fill_what_is_off()

    def _fill_what_is_off(self) -> None:
        code = self._code
        with code.when(code.let("icmp ne ptr %mask, null")), code.loop("%lanes") as index:
            bit = code.load("i8", code.at("%mask", "i8", index))
            with code.when(code.let(f"icmp eq i8 {bit}, 0")):
                filler = code.slot(self.kind)
                code.store(self.kind, "0", filler)
                with code.when(code.let("icmp ne ptr %other, null")):
                    given = code.load(self.kind, code.at("%other", self.kind, index))
                    code.store(self.kind, given, filler)
                place = code.at("%values", self.kind, index)
                code.store(self.kind, code.load(self.kind, filler), place)

    def _store(self) -> None:
        code = self._code
        with self._each_on() as (index, address):
            value = code.load(self.kind, code.at("%values", self.kind, index))
            code.do(f"store {self.kind} {value}, ptr {code.pointer(address)}, align 1")
        self._no_lane_against_lane()

    def _no_lane_against_lane(self) -> None:
        """Two lanes of one store with one address: which of them stays is nobody's to say."""
        code = self._code
        only = code.field("%context", Context.ONLY)
        several = code.let("icmp ugt i64 %lanes, 1")
        with code.when(self._both(several, code.let(f"icmp eq i64 {only}, 0"))):
            with self._each_on() as (index, address):
                self._count(self._changes(index, address), address)
            self._refuse(Fault.LANES)
