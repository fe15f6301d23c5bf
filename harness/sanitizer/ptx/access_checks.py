"""The checks of an access in LLVM, for `read`, `write` and `update`; compiled once.

Causes are checked before what follows from them: overflow, bounds, alignment, access rules,
initialization, races. The first violation fills the report, and the access does not happen.
"""

from __future__ import annotations

from harness.sanitizer.ptx.abi import (
    MAX_OVERFLOWS,
    OVERFLOW_FLAG,
    REGION_ROW,
    ContextField,
    FrameField,
    OverflowRecordField,
    PtxRegionField,
    RegionSpace,
)
from harness.sanitizer.ptx.copy_checks import GRANULE_BITS, CopyEntry
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.race_checks import RaceCheckedPtxAccess
from harness.sanitizer.violations.kinds import FORBIDDEN, ViolationKind

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


def build_access_checks() -> str:
    parts = [_build_find(), _build_lookup(), _build_classify(), _build_record()]
    parts += [_AccessCheck(verb).function for verb in VERBS]
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
        is_inside = code.join_conditions(
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
    may_be_pointer = code.join_conditions(
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


class _AccessCheck(RaceCheckedPtxAccess):
    """The function for one verb: it returns 0, or 1 with the report filled."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        code = self._code
        self._check_overflow()
        self._number, self._region = code.load_region()
        self._check_local_memory()
        self._check_bounds()
        self._check_alignment()
        self._offset = code.let(f"sub i64 {self._address}, {self._field(PtxRegionField.START)}")
        if self.verb not in ("write", "poke"):
            self._check_rules(PtxRegionField.READ_RULES, FORBIDDEN["read"])
        if self.verb not in ("read", "peek"):
            self._check_rules(PtxRegionField.WRITE_RULES, FORBIDDEN["write"])
        self._check_initialized()
        self._check_copies()
        if self.verb != "peek":
            self._check_races()
        code.emit("ret i32 0")

    def _check_overflow(self) -> None:
        """Report an address with an overflow; of others raise the site's extent."""
        code = self._code
        with code.when(code.let("icmp slt i32 %state, 0"), exits=True):
            number = code.let(f"zext i32 {code.let(f'and i32 %state, {OVERFLOW_FLAG - 1}')} to i64")
            self._report(ViolationKind.OVERFLOW, code.let("zext i32 %region to i64"), number)
        extents = code.get_context(ContextField.EXTENTS)
        with code.when(code.is_nonzero(extents)):
            entry = code.element_pointer(code.to_pointer(extents), "i64", "%site")
            known, state = code.load("i64", entry), code.let("zext i32 %state to i64")
            code.store("i64", code.call_intrinsic("umax", "i64", known, state), entry)

    def _check_rules(self, field: PtxRegionField, kind: ViolationKind) -> None:
        """Look both ends of the access up in the block's mask of allowed bytes."""
        code = self._code
        table = self._field(field)
        with code.when(code.is_nonzero(table)):
            block = code.get_context(ContextField.BLOCK_ORDINAL)
            mask = code.load_field(code.to_pointer(table), block)
            with code.when(code.is_nonzero(mask)):
                allowed = code.to_pointer(mask)
                last = code.let(f"add i64 {self._offset}, {code.let('sub i64 %size, 1')}")
                first_byte = code.load_element("i8", allowed, self._offset)
                last_byte = code.load_element("i8", allowed, last)
                both = code.let(f"and i8 {first_byte}, {last_byte}")
                with code.when(code.let(f"icmp eq i8 {both}, 0"), exits=True):
                    self._report(kind, self._number)

    def _check_initialized(self) -> None:
        code = self._code
        shadow = self._field(PtxRegionField.UNINITIALIZED)
        with code.when(code.is_nonzero(shadow)):
            start = code.element_pointer(code.to_pointer(shadow), "i8", self._offset)
            if self.verb in ("read", "update", "peek"):
                # Of a read, `%new` has a bit for each byte that is used of it, or none for all.
                mask = "0" if self.verb == "update" else code.let("ptrtoint ptr %new to i64")
                is_whole = code.is_equal(mask, 0)
                with code.loop("%size") as place:
                    empty = code.load_element("i8", start, place)
                    bit = code.let(f"trunc i64 {code.let(f'lshr i64 {mask}, {place}')} to i1")
                    is_used = code.let(f"select i1 {is_whole}, i1 true, i1 {bit}")
                    is_empty = code.let(f"icmp ne i8 {empty}, 0")
                    with code.when(code.join_conditions(is_used, is_empty), exits=True):
                        self._report(ViolationKind.UNINITIALIZED_READ, self._number)
            if self.verb not in ("read", "peek"):
                code.fill_bytes(start, 0, "%size")

    def _check_copies(self) -> None:
        """Report a read of bytes that a copy may not have reached; a write takes their place."""
        code = self._code
        table = code.get_context(ContextField.COPIES)
        is_shared = code.is_equal(self._field(PtxRegionField.SPACE), RegionSpace.SHARED)
        with code.when(code.join_conditions(is_shared, code.is_nonzero(table))):
            start = code.get_context(ContextField.SHARED)
            offset = code.let(f"sub i64 %address, {start}")
            first = code.let(f"lshr i64 {offset}, {GRANULE_BITS}")
            last = code.let(f"add i64 {offset}, {code.let('sub i64 %size, 1')}")
            last = code.let(f"lshr i64 {last}, {GRANULE_BITS}")
            count = code.let(f"add i64 {code.let(f'sub i64 {last}, {first}')}, 1")
            with code.loop(count) as step:
                place = code.let(f"add i64 {first}, {step}")
                if self.verb in ("read", "peek"):
                    self._check_copy(code.load_field(code.to_pointer(table), place))
                else:
                    code.store_element("i64", "0", code.to_pointer(table), place)

    def _check_copy(self, value: str) -> None:
        code = self._code
        entry = CopyEntry(code, value)
        with code.when(entry.is_of_block):
            in_progress, without_barrier = entry.emit_conditions()
            for condition, kind in (
                (in_progress, ViolationKind.COPY_IN_PROGRESS),
                (without_barrier, ViolationKind.COPY_WITHOUT_BARRIER),
            ):
                with code.when(condition, exits=True):
                    self._report(kind, self._number, entry.thread)

    def _check_local_memory(self) -> None:
        """Allow an address of unknown origin anywhere in the thread's own memory."""
        code = self._code
        with code.when(code.is_equal(self._number, 0), exits=True):
            local = code.get_frame(FrameField.LOCAL)
            size = code.get_context(ContextField.LOCAL_SIZE)
            offset = code.let(f"sub i64 %address, {local}")
            inside = code.let(f"icmp ult i64 {offset}, {size}")
            with code.when(inside, exits=True):
                code.emit("ret i32 0")
            self._report(ViolationKind.OUT_OF_BOUNDS, "0")

    def _check_bounds(self) -> None:
        code = self._code
        is_local = code.is_equal(self._field(PtxRegionField.SPACE), RegionSpace.LOCAL)
        local = code.get_frame(FrameField.LOCAL)
        base = code.let(f"select i1 {is_local}, i64 {local}, i64 0")
        self._address = code.let(f"sub i64 %address, {base}")
        start, end = self._field(PtxRegionField.START), self._field(PtxRegionField.END)
        last = code.let(f"sub i64 {code.let(f'sub i64 {end}, {start}')}, %size")
        offset = code.let(f"sub i64 {self._address}, {start}")
        outside = code.let(f"icmp ugt i64 {offset}, {last}")
        too_small = code.let(f"icmp slt i64 {last}, 0")
        with code.when(code.let(f"or i1 {outside}, {too_small}"), exits=True):
            self._report(ViolationKind.OUT_OF_BOUNDS, self._number)

    def _check_alignment(self) -> None:
        code = self._code
        # The largest power of two in the size, for the many bytes of a bulk copy at most 16.
        lowest = code.let(f"and i64 %size, {code.let('sub i64 0, %size')}")
        multiple = code.call_intrinsic("umin", "i64", lowest, 16)
        rest = code.let(f"and i64 %address, {code.let(f'sub i64 {multiple}, 1')}")
        with code.when(code.is_nonzero(rest), exits=True):
            self._report(ViolationKind.MISALIGNED, self._number)
