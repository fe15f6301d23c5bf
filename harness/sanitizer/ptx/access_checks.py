"""A checked access of a thread in LLVM: one function for each verb, compiled once.

Here is what `checks` asks of it. The first violation fills the report and ends the launch, so the
access does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.sanitizer.checks import add_checks
from harness.sanitizer.checks.bounds import measure_limit
from harness.sanitizer.checks.words import Lane, Mark, Question, Region
from harness.sanitizer.ptx.abi import (
    MAX_OVERFLOWS,
    REGION_ROW,
    ContextField,
    FrameField,
    OverflowRecordField,
    PtxRegionField,
    RegionSpace,
)
from harness.sanitizer.ptx.copy_checks import GRANULE_BITS, CopyEntry
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.race_entries import ThreadRaceEntries
from harness.sanitizer.violations.kinds import ViolationKind

# `peek` and `poke` are reads and writes that may synchronize: volatile, relaxed, acquire, release.
VERBS = ("read", "write", "update", "peek", "poke")
ACCESS_FUNCTIONS = (
    *(f"ptx_{verb}" for verb in VERBS),
    "ptx_classify",
    "ptx_record",
    "ptx_mbarrier",
    "ptx_begin_copy",
    "ptx_load_row",
    "ptx_store_uninitialized",
)
_SMALLEST_ADDRESS = 1 << 16
_RULES = {
    Mark.READ_EXCLUDED: PtxRegionField.READ_RULES,
    Mark.WRITE_EXCLUDED: PtxRegionField.WRITE_RULES,
}


def build_access_checks() -> str:
    parts = [_build_find(), _build_lookup(), _build_classify(), _build_record()]
    parts += [_CheckedThreadAccess(verb).code for verb in VERBS]
    return "\n".join(map(str, parts)) + "\ndeclare i32 @memcmp(ptr, ptr, i64)\n"


def _build_find() -> PtxFunction:
    """Build the function that finds the region of an address by its number; 0 if there is none."""
    code = PtxFunction("define internal i32 @ptx_find(ptr %context, i64 %address)")
    with code.when(code.let(f"icmp ult i64 %address, {_SMALLEST_ADDRESS}"), exits=True):
        code.emit("ret i32 0")
    table = code.to_pointer(code.get_context(ContextField.REGIONS))
    with code.loop(code.get_context(ContextField.REGION_COUNT)) as index:
        region = code.element_pointer(table, REGION_ROW, index)
        start = code.load_field(region, PtxRegionField.START)
        end = code.load_field(region, PtxRegionField.END)
        is_inside = code.both(
            code.let(f"icmp uge i64 %address, {start}"), code.let(f"icmp ult i64 %address, {end}")
        )
        with code.when(is_inside, exits=True):
            code.emit(f"ret i32 {code.let(f'trunc i64 {index} to i32')}")
    code.emit("ret i32 0")
    return code


def _build_lookup() -> PtxFunction:
    """Build the same for any address: if no region is known, Python is called and may add one."""
    code = PtxFunction("define internal i32 @ptx_lookup(ptr %context, i64 %address)")
    found = code.let("call i32 @ptx_find(ptr %context, i64 %address)")
    with code.when(code.let(f"icmp ne i32 {found}, 0"), exits=True):
        code.emit(f"ret i32 {found}")
    ask = code.to_pointer(code.get_context(ContextField.FIND_REGION))
    code.emit(f"ret i32 {code.let(f'call i32 {ask}(i64 %address)')}")
    return code


def _build_classify() -> PtxFunction:
    """Build the function that finds the region that a loaded pointer points into.

    A pointer among the parameters has its region in a table, since it may lie at a tensor's end.
    """
    code = PtxFunction(
        "define i32 @ptx_classify(ptr %context, i64 %value, i64 %address, i1 %parameter)"
    )
    with code.when("%parameter"):
        base = code.get_context(ContextField.PARAMETERS)
        offset = code.let(f"sub i64 %address, {base}")
        with code.when(code.let(f"icmp ult i64 {offset}, 32768"), exits=True):
            table = code.to_pointer(code.get_context(ContextField.PARAMETER_REGIONS))
            region = code.load_field(table, code.let(f"lshr i64 {offset}, 3"))
            code.emit(f"ret i32 {code.let(f'trunc i64 {region} to i32')}")
    may_be_pointer = code.both(
        code.let(f"icmp ugt i64 %value, {1 << 40}"), code.let(f"icmp ult i64 %value, {1 << 47}")
    )
    with code.when(may_be_pointer, exits=True):
        code.emit(f"ret i32 {code.let('call i32 @ptx_lookup(ptr %context, i64 %value)')}")
    code.emit(f"ret i32 {code.let('call i32 @ptx_find(ptr %context, i64 %value)')}")
    return code


def _build_record() -> PtxFunction:
    """Build the function that saves an overflow and returns its number, from 1."""
    code = PtxFunction("define i32 @ptx_record(ptr %context, i64 %site, i64 %true, i64 %wrapped)")
    count = code.get_context(ContextField.OVERFLOW_COUNT)
    full = code.let(f"icmp uge i64 {count}, {MAX_OVERFLOWS - 2}")
    number = code.let(f"select i1 {full}, i64 {count}, i64 {code.let(f'add i64 {count}, 1')}")
    code.store_element("i64", number, "%context", ContextField.OVERFLOW_COUNT)
    table = code.to_pointer(code.get_context(ContextField.OVERFLOWS))
    row = code.element_pointer(table, f"[{len(OverflowRecordField)} x i64]", number)
    code.store_element("i64", "%site", row, OverflowRecordField.SITE)
    code.store_element("i64", "%true", row, OverflowRecordField.TRUE_VALUE)
    code.store_element("i64", "%wrapped", row, OverflowRecordField.WRAPPED_VALUE)
    code.emit(f"ret i32 {code.let(f'trunc i64 {number} to i32')}")
    return code


class _CheckedThreadAccess(ThreadRaceEntries):
    """The function for one verb: it returns 0, or 1 with the report filled."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        add_checks(self)
        self.code.emit("ret i32 0")

    # Where it goes

    def regions(self) -> list[Region[str]]:
        code = self.code
        self.number, self.region = code.load_region()
        self._access_local_memory()
        is_local = code.is_equal(self.load_region(PtxRegionField.SPACE), RegionSpace.LOCAL)
        local = code.get_frame(FrameField.LOCAL)
        base = code.let(f"select i1 {is_local}, i64 {local}, i64 0")
        start, end = map(self.load_region, (PtxRegionField.START, PtxRegionField.END))
        size_plus_one = code.let(f"add i64 {code.subtract(end, start)}, 1")
        start = code.let(f"add i64 {start}, {base}")
        self._offset = code.subtract("%address", start)
        return [Region(start, measure_limit(code, size_plus_one, "%size"))]

    def _access_local_memory(self) -> None:
        """Allow an address of unknown origin anywhere in the thread's own memory."""
        code = self.code
        with code.when(code.is_equal(self.number, 0), exits=True):
            local = code.get_frame(FrameField.LOCAL)
            size = code.get_context(ContextField.LOCAL_SIZE)
            inside = code.let(f"icmp ult i64 {code.subtract('%address', local)}, {size}")
            with code.when(inside, exits=True):
                code.emit("ret i32 0")
            self.fill_report(ViolationKind.OUT_OF_BOUNDS)

    # Marks

    def marks(self, mark: Mark) -> Iterator[Question[str]]:
        code = self.code
        if mark is Mark.OVERFLOWED:
            yield lambda lane: code.let("icmp slt i32 %state, 0")
            self._measure_extent()
        elif mark is Mark.MISALIGNED:
            yield self._is_misaligned
        elif mark is Mark.UNINITIALIZED:
            shadow = self.load_region(PtxRegionField.UNINITIALIZED)
            with code.when(code.is_nonzero(shadow)):
                self._shadow = code.element_pointer(code.to_pointer(shadow), "i8", self._offset)
                yield self._is_empty
        elif mark in _RULES:
            yield from self._find_rules(_RULES[mark])
        else:
            table = code.get_context(ContextField.COPIES)
            is_shared = code.is_equal(self.load_region(PtxRegionField.SPACE), RegionSpace.SHARED)
            with code.when(code.both(is_shared, code.is_nonzero(table))):
                self._copies = code.to_pointer(table)
                yield lambda lane: self._find_copy(mark)

    def _measure_extent(self) -> None:
        """Raise the site's extent to the state of this address."""
        code = self.code
        extents = code.get_context(ContextField.EXTENTS)
        with code.when(code.is_nonzero(extents)):
            entry = code.element_pointer(code.to_pointer(extents), "i64", "%site")
            known, state = code.load("i64", entry), code.let("zext i32 %state to i64")
            code.store("i64", code.call_intrinsic("umax", "i64", known, state), entry)

    def _is_misaligned(self, lane: Lane[str]) -> str:
        """Ask for the largest power of two in the size, for the bytes of a bulk copy at most 16."""
        code = self.code
        lowest = code.let(f"and i64 %size, {code.subtract('0', '%size')}")
        multiple = code.call_intrinsic("umin", "i64", lowest, 16)
        return code.is_nonzero(code.let(f"and i64 %address, {code.subtract(multiple, 1)}"))

    def _find_rules(self, field: PtxRegionField) -> Iterator[Question[str]]:
        """Look both ends of the access up in the block's mask of allowed bytes."""
        code, table = self.code, self.load_region(field)
        with code.when(code.is_nonzero(table)):
            block = code.get_context(ContextField.BLOCK_ORDINAL)
            mask = code.load_field(code.to_pointer(table), block)

            def is_excluded(lane: Lane[str]) -> str:
                allowed = code.to_pointer(mask)
                last = code.let(f"add i64 {self._offset}, {code.subtract('%size', 1)}")
                ends = [code.load_element("i8", allowed, place) for place in (self._offset, last)]
                return code.let(f"icmp eq i8 {code.let(f'and i8 {ends[0]}, {ends[1]}')}, 0")

            with code.when(code.is_nonzero(mask)):
                yield is_excluded

    def _is_empty(self, lane: Lane[str]) -> str:
        """Ask for each byte; of a read, `%new` has a bit for each that is used, or none for all."""
        code, found = self.code, self.code.alloca("i1", "false")
        mask = "0" if self.verb == "update" else code.let("ptrtoint ptr %new to i64")
        is_whole = code.is_equal(mask, 0)
        with code.loop("%size") as place:
            empty = code.let(f"icmp ne i8 {code.load_element('i8', self._shadow, place)}, 0")
            bit = code.let(f"trunc i64 {code.let(f'lshr i64 {mask}, {place}')} to i1")
            hit = code.both(empty, code.let(f"select i1 {is_whole}, i1 true, i1 {bit}"))
            code.store("i1", code.let(f"or i1 {code.load('i1', found)}, {hit}"), found)
        return code.load("i1", found)

    def _find_copy(self, mark: Mark) -> str:
        """Ask for the copies into all granules; `_other` gets the thread of the last one found."""
        code, found = self.code, self.code.alloca("i1", "false")
        with self._each_copy() as place:
            entry = CopyEntry(code, code.load_field(self._copies, place))
            with code.when(entry.is_of_block), code.when(entry.emit_condition(mark)):
                code.store("i1", "true", found)
                code.store("i64", entry.thread, self._other)
        return code.load("i1", found)

    @contextmanager
    def _each_copy(self) -> Iterator[str]:
        code = self.code
        offset = code.subtract("%address", code.get_context(ContextField.SHARED))
        first = code.let(f"lshr i64 {offset}, {GRANULE_BITS}")
        last = code.let(f"add i64 {offset}, {code.subtract('%size', 1)}")
        last = code.let(f"lshr i64 {last}, {GRANULE_BITS}")
        with code.loop(code.let(f"add i64 {code.subtract(last, first)}, 1")) as step:
            yield code.let(f"add i64 {first}, {step}")

    def clear_mark(self, mark: Mark) -> None:
        if mark is Mark.UNINITIALIZED:
            self.code.fill_bytes(self._shadow, 0, "%size")
        else:
            with self._each_copy() as place:
                self.code.store_element("i64", "0", self._copies, place)
