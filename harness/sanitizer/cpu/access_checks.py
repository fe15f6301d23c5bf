"""A checked access in LLVM: one function for each verb and element size, compiled once.

A kernel passes a block of addresses, its mask, and the region that its pointers may reach. Here is
what `checks` asks of it, and the access itself. A violation is reported once for each site. The
kernel returns 1 if that was the launch's last report; otherwise it goes on, and lanes that were
reported for where they go read 0 and write nothing. Example: `unfix_read4` reads a block of int32.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.sanitizer.checks import add_checks
from harness.sanitizer.checks.bounds import measure_limit
from harness.sanitizer.checks.words import Lane, Mark, Question, Region
from harness.sanitizer.cpu.abi import (
    KINDS_PER_SITE,
    MAX_OVERFLOWS,
    OVERFLOW_FLAG,
    REPORT_SIZE,
    LaunchField,
    OverflowField,
    RegionField,
    ReportField,
    ReportState,
)
from harness.sanitizer.cpu.access_function import build_active_count
from harness.sanitizer.cpu.race_entries import BlockRaceEntries, build_is_ordered
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import ViolationKind

VERBS, ACCESS_SIZES = ("read", "write", "update"), (1, 2, 4, 8)
_RULES = {
    Mark.READ_EXCLUDED: RegionField.READ_RULES,
    Mark.WRITE_EXCLUDED: RegionField.WRITE_RULES,
}
_PARAMETER_TYPES = "ptr, i64, ptr, i64, ptr, ptr, ptr, ptr, ptr"


def declare_access_functions(text: str) -> str:
    """Declare the access functions that a kernel's module calls."""
    types = {
        "unfix_record_overflow": "ptr, i64, i64, i64, i64",
        "unfix_report": "ptr, i64, i64, i64, i64, i64, i64, i64",
    }
    lines = [
        f"declare i32 @{name}({types.get(name, _PARAMETER_TYPES)})"
        for name in list_access_functions()
        if f"@{name}(" in text
    ]
    return "\n".join(lines) + "\n"


def build_access_module() -> str:
    helpers = (
        _build_find_region,
        _build_record_overflow,
        _build_report,
        build_active_count,
        build_is_ordered,
    )
    accesses = (_CheckedBlock(verb, size) for verb in VERBS for size in ACCESS_SIZES)
    return "\n".join(map(str, (*(build() for build in helpers), *(one.code for one in accesses))))


def list_access_functions() -> list[str]:
    return [
        *(f"unfix_{verb}{size}" for verb in VERBS for size in ACCESS_SIZES),
        "unfix_record_overflow",
        "unfix_report",
    ]


def _build_find_region() -> LlvmFunction:
    """Build the function that finds the tracked region of an address, or null."""
    code = LlvmFunction("define internal ptr @find(ptr %context, i64 %address)")
    table = code.to_pointer(code.load_context(LaunchField.STORAGES))
    with code.loop(code.load_context(LaunchField.STORAGE_COUNT)) as index:
        region = code.element_pointer(table, f"[{len(RegionField)} x i64]", index)
        after = code.let(f"icmp uge i64 %address, {code.load_field(region, RegionField.START)}")
        before = code.let(f"icmp ult i64 %address, {code.load_field(region, RegionField.END)}")
        with code.when(code.let(f"and i1 {after}, {before}"), exits=True):
            code.emit(f"ret ptr {region}")
    code.emit("ret ptr null")
    return code


def _build_record_overflow() -> LlvmFunction:
    """Build the function that saves an overflowed operation and returns its number."""
    parameters = "ptr %context, i64 %site, i64 %left, i64 %right, i64 %result"
    code = LlvmFunction(f"define i32 @unfix_record_overflow({parameters})")
    only = code.load_context(LaunchField.WATCHED_SITES)
    with code.when(code.is_nonzero(only)):
        counts = code.load_element("i8", code.to_pointer(only), "%site")
        with code.when(code.let(f"icmp eq i8 {counts}, 0"), exits=True):
            code.emit("ret i32 0")
    count = code.load_context(LaunchField.OVERFLOW_COUNT)
    full = code.let(f"icmp uge i64 {count}, {MAX_OVERFLOWS - 2}")
    number = code.let(f"select i1 {full}, i64 {count}, i64 {code.let(f'add i64 {count}, 1')}")
    code.store_element("i64", number, "%context", LaunchField.OVERFLOW_COUNT)
    table = code.to_pointer(code.load_context(LaunchField.OVERFLOWS))
    entry = code.element_pointer(table, f"[{len(OverflowField)} x i64]", number)
    for place, value in (
        (OverflowField.SITE, "%site"),
        (OverflowField.LEFT, "%left"),
        (OverflowField.RIGHT, "%right"),
        (OverflowField.RESULT, "%result"),
    ):
        code.store_element("i64", value, entry, place)
    flagged = code.let(f"or i64 {number}, {OVERFLOW_FLAG}")
    code.emit(f"ret i32 {code.let(f'trunc i64 {flagged} to i32')}")
    return code


def _build_report() -> LlvmFunction:
    """Build the function that reports a violation, unless its site has been; 1 ends the launch."""
    names = (
        ReportField.KIND, ReportField.SITE, ReportField.ADDRESS, ReportField.VIOLATING_LANES,
        ReportField.ACTIVE_LANES, ReportField.OTHER, ReportField.REGION,
    )  # fmt: skip
    parameters = ", ".join(f"i64 %{name.name.lower()}" for name in names)
    code = LlvmFunction(f"define i32 @unfix_report(ptr %context, {parameters})")
    state = emit_report_state(code, "%kind")
    known = code.let(f"icmp ne i8 {code.load('i8', state)}, {int(ReportState.UNSEEN)}")
    with code.when(known, exits=True):
        code.emit("ret i32 0")
    code.store("i8", str(int(ReportState.SEEN)), state)
    count = code.load_context(LaunchField.REPORT_COUNT)
    table = code.to_pointer(code.load_context(LaunchField.REPORTS))
    report = code.element_pointer(table, f"[{REPORT_SIZE} x i64]", count)
    for name in names:
        code.store_element("i64", f"%{name.name.lower()}", report, name)
    ordinal = code.load_context(LaunchField.PROGRAM_ORDINAL)
    code.store_element("i64", ordinal, report, ReportField.ORDINAL)
    with code.when(code.let(f"icmp eq i64 %kind, {int(ViolationKind.OVERFLOW)}")):
        table = code.to_pointer(code.load_context(LaunchField.OVERFLOWS))
        entry = code.element_pointer(table, f"[{len(OverflowField)} x i64]", "%other")
        for field in OverflowField:
            number = code.load_field(entry, field)
            code.store_element("i64", number, report, ReportField.OVERFLOW + field)
    count = code.let(f"add i64 {count}, 1")
    code.store_element("i64", count, "%context", LaunchField.REPORT_COUNT)
    ends = code.let(f"icmp uge i64 {count}, {code.load_context(LaunchField.REPORT_LIMIT)}")
    code.emit(f"ret i32 {code.let(f'zext i1 {ends} to i32')}")
    return code


def emit_report_state(code: LlvmFunction, kind: str) -> str:
    """Emit the address of the state of a kind of violation at `%site`."""
    states = code.to_pointer(code.load_context(LaunchField.REPORT_STATES))
    first = code.let(f"mul i64 %site, {KINDS_PER_SITE}")
    return code.element_pointer(states, "i8", code.let(f"add i64 {first}, {kind}"))


class _CheckedBlock(BlockRaceEntries):
    """Reads, stores or atomic updates of a block of elements of one size."""

    def __init__(self, verb: str, size: int) -> None:
        super().__init__(verb, size)
        add_checks(self)
        code = self.code
        if verb == "read":
            with code.when(code.let("icmp ne ptr %values, null")):  # a check may be without a load
                self._emit_load()
        elif verb == "write":
            self._emit_store()
        else:
            with (
                code.when(code.let("icmp ne ptr %values, null")),
                self.each_active_lane() as lane,
            ):
                code.store_element("i8", "1", "%values", lane.place)
        code.emit("ret i32 0")

    # Where it goes

    def regions(self) -> list[Region[str]]:
        self._access_unknown_memory()
        code = self.code
        start, end = map(self.load_region, (RegionField.START, RegionField.END))
        size_plus_one = code.let(f"add i64 {code.subtract(end, start)}, 1")
        return [Region(start, measure_limit(code, size_plus_one, str(self.size)))]

    def _access_unknown_memory(self) -> None:
        """Find each lane's region, for pointers loaded from memory or of several tensors."""
        code = self.code
        with code.when(code.let("icmp eq ptr %region, null"), exits=True):
            unknown = code.alloca("i64", "0")
            with self.each_active_lane() as lane:
                region = code.let(f"call ptr @find(ptr %context, i64 {lane.address})")
                is_unknown = code.let(f"icmp eq ptr {region}, null")
                with code.when(is_unknown):
                    self.emit_report(ViolationKind.OUT_OF_BOUNDS, lane.address, "1", "0", "0")
                    code.increment(unknown, "1")
                self.access_lane(lane, region, code.negate(is_unknown))
            self.finish_lanes()
            if self.verb == "write":
                with code.when(code.is_equal(code.load("i64", unknown), 0)):
                    self._check_lane_races()
            code.emit("ret i32 0")

    # Marks

    def marks(self, mark: Mark) -> Iterator[Question[str]]:
        if mark is Mark.OVERFLOWED:
            yield from self._find_overflows()
        elif mark is Mark.UNINITIALIZED:
            shadow = self.load_region(RegionField.UNINITIALIZED)
            with self.code.when(self.code.is_nonzero(shadow)):
                self._shadow = self.code.to_pointer(shadow)
                yield self._is_empty
        elif mark in _RULES:
            yield from self._find_rules(_RULES[mark])

    def _find_overflows(self) -> Iterator[Question[str]]:
        code = self.code
        with code.when(code.let("icmp ne ptr %states, null")):
            self._measure_extent()
            state = code.load("i8", emit_report_state(code, str(int(ViolationKind.OVERFLOW))))
            with code.when(code.let(f"icmp ne i8 {state}, {int(ReportState.OFF)}")):
                yield lambda lane: code.let(
                    f"icmp slt i32 {code.load_element('i32', '%states', lane.place)}, 0"
                )

    def _measure_extent(self) -> None:
        """Raise the site's extent to the largest state of an active lane, where it is asked for."""
        code = self.code
        extents = code.load_context(LaunchField.EXTENTS)
        with code.when(code.is_nonzero(extents)):
            largest = code.alloca("i64", "0")

            def fold(index: str, active: str) -> None:
                state = code.load_element("i32", "%states", index)
                extent = code.let(f"call i32 @llvm.smax.i32(i32 {state}, i32 0)")  # overflows: 0
                wide = code.let(f"mul i64 {code.let(f'zext i32 {extent} to i64')}, {active}")
                pair = f"i64 {code.load('i64', largest)}, i64 {wide}"
                code.store("i64", code.let(f"call i64 @llvm.umax.i64({pair})"), largest)

            self.fold_lanes(fold)
            entry = code.element_pointer(code.to_pointer(extents), "i64", "%site")
            pair = f"i64 {code.load('i64', entry)}, i64 {code.load('i64', largest)}"
            code.store("i64", code.let(f"call i64 @llvm.umax.i64({pair})"), entry)

    def _find_rules(self, field: RegionField) -> Iterator[Question[str]]:
        """Look both ends of an access up in the program's mask of allowed bytes."""
        code, table = self.code, self.load_region(field)
        with code.when(code.is_nonzero(table)):
            ordinal = code.load_context(LaunchField.PROGRAM_ORDINAL)
            mask = code.load_field(code.to_pointer(table), ordinal)
            last = code.subtract(self.load_region(RegionField.STORAGE_SIZE), 1)

            def is_excluded(lane: Lane[str]) -> str:
                first = self.measure_storage_offset(lane.address)
                end = code.let(f"add i64 {first}, {self.size - 1}")
                end = code.let(f"call i64 @llvm.umin.i64(i64 {end}, i64 {last})")
                allowed = code.to_pointer(mask)
                ends = [code.load_element("i8", allowed, place) for place in (first, end)]
                return code.let(f"icmp eq i8 {code.let(f'and i8 {ends[0]}, {ends[1]}')}, 0")

            with code.when(code.is_nonzero(mask)):
                yield is_excluded

    def _is_empty(self, lane: Lane[str]) -> str:
        offset = self.measure_storage_offset(lane.address)
        return self.code.let(f"icmp ne i8 {self.code.load_element('i8', self._shadow, offset)}, 0")

    def clear_mark(self, mark: Mark) -> None:
        code = self.code
        with self.each_active_lane() as lane:
            offset = self.measure_storage_offset(lane.address)
            place = code.element_pointer(self._shadow, "i8", offset)
            code.emit(f"store {self.llvm_type} 0, ptr {place}, align 1")

    # The access itself

    def _emit_load(self) -> None:
        code = self.code
        with self.each_active_lane() as lane:
            value = code.load(self.llvm_type, code.to_pointer(lane.address) + ", align 1")
            code.store_element(self.llvm_type, value, "%values", lane.place)
        self.fill_masked_lanes()

    def _emit_store(self) -> None:
        code = self.code
        with self.each_active_lane() as lane:
            value = code.load_element(self.llvm_type, "%values", lane.place)
            pointer = code.to_pointer(lane.address)
            code.emit(f"store {self.llvm_type} {value}, ptr {pointer}, align 1")
        self._check_lane_races()

    def _check_lane_races(self) -> None:
        """Report two lanes of one store with one address, whose writes have no defined order."""
        code = self.code
        only = code.load_context(LaunchField.WATCHED_SITES)
        several = code.let("icmp ugt i64 %lanes, 1")
        with code.when(code.both(several, code.is_equal(only, 0))):
            self.report(ViolationKind.LANE_RACE, self.changes_value)
