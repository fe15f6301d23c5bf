"""The checks of an access in LLVM: one function for each verb and element size, compiled once.

A kernel passes a block of addresses, its mask, and the region that its pointers may reach. Causes
are checked before what follows from them: overflow, bounds, access rules, initialization, races.
A violation is reported once for each site. The kernel returns 1 if that was the launch's last
report; otherwise it goes on, and lanes whose address is wrong read 0 and write nothing. Example:
`unfix_read4` reads a block of int32. All checks on a CPU are here and in `race_checks`.
"""

from __future__ import annotations

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
from harness.sanitizer.cpu.race_checks import RaceCheckedAccess, build_is_ordered
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import FORBIDDEN, ViolationKind

ACCESS_SIZES = (1, 2, 4, 8)
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
    parts = [
        str(build())
        for build in (_build_find_region, _build_record_overflow, _build_report, build_is_ordered)
    ]
    for verb in ("read", "write", "update"):
        parts += [str(_CheckedAccess(verb, size).function) for size in ACCESS_SIZES]
    return "\n".join(parts)


def list_access_functions() -> list[str]:
    verbs = ("read", "write", "update")
    return [
        *(f"unfix_{verb}{size}" for verb in verbs for size in ACCESS_SIZES),
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


class _CheckedAccess(RaceCheckedAccess):
    """Reads, stores or atomic updates of elements of one size."""

    def __init__(self, access: str, size: int) -> None:
        super().__init__(access, size)
        code = self._code
        self._check_overflow()
        self._check_unknown_origin()
        self._check_bounds()
        if self.access != "write":
            self._check_access_rules(RegionField.READ_RULES, FORBIDDEN["read"])
        if self.access != "read":
            self._check_access_rules(RegionField.WRITE_RULES, FORBIDDEN["write"])
        self._check_initialized()
        {
            "read": self._check_read_races,
            "write": self._check_write_races,
            "update": self._check_atomic_races,
        }[self.access]()
        if self.access == "read":
            with code.when(code.let("icmp ne ptr %values, null")):  # a check may be without a load
                self._emit_load()
        elif self.access == "write":
            self._emit_store()
        else:
            with (
                code.when(code.let("icmp ne ptr %values, null")),
                self._each_active_lane() as (index, _),
            ):
                code.store_element("i8", "1", "%values", index)
        code.emit("ret i32 0")

    # The checks

    def _check_overflow(self) -> None:
        code = self._code
        with code.when(code.let("icmp ne ptr %states, null")):
            overflowed = self._measure_states()
            report_state = code.load(
                "i8", emit_report_state(code, str(int(ViolationKind.OVERFLOW)))
            )
            is_on = code.let(f"icmp ne i8 {report_state}, {int(ReportState.OFF)}")
            with code.when(self._code.join_conditions(is_on, overflowed)):
                with self._each_active_lane() as (index, address):
                    state = code.load_element("i32", "%states", index)
                    overflowed = code.let(f"icmp slt i32 {state}, 0")
                    number = code.let(f"and i32 {state}, {OVERFLOW_FLAG - 1}")
                    self._count_violation(
                        overflowed, address, code.let(f"zext i32 {number} to i64")
                    )
                with self._when_counted():
                    first = code.load("i64", self._first_address)
                    other = code.load("i64", self._first_other)
                    self._emit_report(ViolationKind.OVERFLOW, first, "1", other)
                    with self._each_active_lane() as (index, address):
                        state = code.load_element("i32", "%states", index)
                        good = code.let(f"icmp sge i32 {state}, 0")
                        self._access_lane(index, "%region", good)
                    self._finish_lanes()

    def _measure_states(self) -> str:
        """Raise the site's extent to the largest state of an active lane; say if one overflowed."""
        code = self._code
        largest, overflowed = code.alloca("i64", "0"), code.alloca("i64", "0")

        def fold(index: str, active: str) -> None:
            state = code.load_element("i32", "%states", index)
            extent = code.let(f"call i32 @llvm.smax.i32(i32 {state}, i32 0)")  # 0 if overflowed
            wide = code.let(f"mul i64 {code.let(f'zext i32 {extent} to i64')}, {active}")
            known = code.load("i64", largest)
            code.store(
                "i64", code.let(f"call i64 @llvm.umax.i64(i64 {known}, i64 {wide})"), largest
            )
            sign = code.let(f"zext i32 {code.let(f'lshr i32 {state}, 31')} to i64")
            hit = code.let(f"and i64 {sign}, {active}")
            code.store("i64", code.let(f"or i64 {code.load('i64', overflowed)}, {hit}"), overflowed)

        self._fold_lanes(fold)
        extents = code.load_context(LaunchField.EXTENTS)
        with code.when(code.is_nonzero(extents)):
            entry = code.element_pointer(code.to_pointer(extents), "i64", "%site")
            pair = f"i64 {code.load('i64', entry)}, i64 {code.load('i64', largest)}"
            code.store("i64", code.let(f"call i64 @llvm.umax.i64({pair})"), entry)
        return code.let(f"icmp ne i64 {code.load('i64', overflowed)}, 0")

    def _check_unknown_origin(self) -> None:
        """Find each lane's region, for pointers loaded from memory or of several tensors."""
        code = self._code
        with code.when(code.let("icmp eq ptr %region, null"), exits=True):
            with self._each_active_lane() as (index, address):
                region = code.let(f"call ptr @find(ptr %context, i64 {address})")
                with code.when(code.let(f"icmp eq ptr {region}, null")):
                    self._emit_report(ViolationKind.OUT_OF_BOUNDS, address, "1", "0")
                    code.increment(self._violating_lanes, "1")
                self._access_lane(index, region, code.let(f"icmp ne ptr {region}, null"))
            self._finish_lanes()
            if self.access == "write":
                many = code.load("i64", self._violating_lanes)
                with code.when(code.let(f"icmp eq i64 {many}, 0")):
                    self._check_lane_races()
            code.emit("ret i32 0")

    def _access_lane(self, index: str, region: str, good: str) -> None:
        """Access one lane by itself; one whose address is not good reads 0 and writes nothing."""
        code = self._code
        kind = "i8" if self.access == "update" else self.llvm_type
        value = code.element_pointer("%values", kind, index)
        if self.access != "write":
            value = code.let(
                f"select i1 {code.let('icmp eq ptr %values, null')}, ptr null, ptr {value}"
            )
        with code.when(good):
            place = code.element_pointer("%addresses", "i64", index)
            ends = code.let(
                f"call i32 @{self.name}(ptr %context, i64 %site, ptr {region}, i64 1,"
                f" ptr {place}, ptr null, ptr null, ptr {value}, ptr null)"
            )
            with code.when(code.let(f"icmp ne i32 {ends}, 0"), exits=True):
                code.emit("ret i32 1")
        if self.access != "write":
            wanted = code.let(f"icmp ne ptr {value}, null")
            with code.when(self._code.join_conditions(wanted, code.let(f"xor i1 {good}, true"))):
                code.store(kind, "0", value)

    def _finish_lanes(self) -> None:
        code = self._code
        if self.access == "read":
            with code.when(code.let("icmp ne ptr %values, null")):
                self._fill_masked_lanes()

    def _check_bounds(self) -> None:
        code = self._code
        start, end = (
            code.load_field("%region", place) for place in (RegionField.START, RegionField.END)
        )
        last_offset = code.let(f"sub i64 {code.let(f'sub i64 {end}, {start}')}, {self.size}")
        is_empty = code.let(f"icmp slt i64 {last_offset}, 0")

        def emit_is_outside(address: str) -> str:
            offset = code.let(f"sub i64 {address}, {start}")
            beyond = code.let(f"icmp ugt i64 {offset}, {last_offset}")
            return code.let(f"or i1 {beyond}, {is_empty}")

        outside = code.alloca("i64", "0")

        def fold(index: str, active: str) -> None:
            address = code.load_element("i64", "%addresses", index)
            hit = code.let(f"zext i1 {emit_is_outside(address)} to i64")
            hit = code.let(f"and i64 {hit}, {active}")
            code.store("i64", code.let(f"or i64 {code.load('i64', outside)}, {hit}"), outside)
            code.increment(self._active_lanes, active)

        self._fold_lanes(fold)
        with (
            code.when(code.let(f"icmp ne i64 {code.load('i64', outside)}, 0")),
            self._each_active_lane() as (_, address),
        ):
            self._count_violation(emit_is_outside(address), address)
        with self._when_counted():
            self._return_if_violated(ViolationKind.OUT_OF_BOUNDS)
            with self._each_active_lane() as (index, address):
                good = code.let(f"xor i1 {emit_is_outside(address)}, true")
                self._access_lane(index, "%region", good)
            self._finish_lanes()

    def _check_access_rules(self, rules_field: RegionField, violation: ViolationKind) -> None:
        code = self._code
        table = code.load_field("%region", rules_field)
        with code.when(code.is_nonzero(table)):
            masks = code.to_pointer(table)
            mask = code.load_field(masks, code.load_context(LaunchField.PROGRAM_ORDINAL))
            allowed = code.to_pointer(mask)
            last = code.let(f"sub i64 {code.load_field('%region', RegionField.STORAGE_SIZE)}, 1")
            with (
                code.when(code.is_nonzero(mask)),
                self._each_active_lane() as (_, address),
            ):
                offset = self._emit_storage_offset(address)
                end = code.let(f"add i64 {offset}, {self.size - 1}")
                end = code.let(f"call i64 @llvm.umin.i64(i64 {end}, i64 {last})")
                at_start = code.load_element("i8", allowed, offset)
                at_end = code.load_element("i8", allowed, end)
                both = code.let(f"and i8 {at_start}, {at_end}")
                self._count_violation(code.let(f"icmp eq i8 {both}, 0"), address)
            self._return_if_violated(violation)

    def _check_initialized(self) -> None:
        code = self._code
        shadow = code.load_field("%region", RegionField.UNINITIALIZED)
        with code.when(code.is_nonzero(shadow)):
            shadow_bytes = code.to_pointer(shadow)
            if self.access != "write":
                with self._each_active_lane() as (_, address):
                    is_uninitialized = code.load_element(
                        "i8", shadow_bytes, self._emit_storage_offset(address)
                    )
                    self._count_violation(code.let(f"icmp ne i8 {is_uninitialized}, 0"), address)
                self._return_if_violated(ViolationKind.UNINITIALIZED_READ)
            if self.access != "read":
                with self._each_active_lane() as (_, address):
                    place = code.element_pointer(
                        shadow_bytes, "i8", self._emit_storage_offset(address)
                    )
                    code.emit(f"store {self.llvm_type} 0, ptr {place}, align 1")

    # The access itself

    def _emit_load(self) -> None:
        code = self._code
        with self._each_active_lane() as (index, address):
            value = code.load(self.llvm_type, code.to_pointer(address) + ", align 1")
            code.store_element(self.llvm_type, value, "%values", index)
        self._fill_masked_lanes()

    def _fill_masked_lanes(self) -> None:
        code = self._code
        with code.when(code.let("icmp ne ptr %mask, null")), code.loop("%lanes") as index:
            bit = code.load_element("i8", "%mask", index)
            with code.when(code.let(f"icmp eq i8 {bit}, 0")):
                filler = code.alloca(self.llvm_type)
                code.store(self.llvm_type, "0", filler)
                with code.when(code.let("icmp ne ptr %other, null")):
                    filler_value = code.load_element(self.llvm_type, "%other", index)
                    code.store(self.llvm_type, filler_value, filler)
                place = code.element_pointer("%values", self.llvm_type, index)
                code.store(self.llvm_type, code.load(self.llvm_type, filler), place)

    def _emit_store(self) -> None:
        code = self._code
        with self._each_active_lane() as (index, address):
            value = code.load_element(self.llvm_type, "%values", index)
            code.emit(f"store {self.llvm_type} {value}, ptr {code.to_pointer(address)}, align 1")
        self._check_lane_races()

    def _check_lane_races(self) -> None:
        """Report two lanes of one store with one address, whose writes have no defined order."""
        code = self._code
        only = code.load_context(LaunchField.WATCHED_SITES)
        several = code.let("icmp ugt i64 %lanes, 1")
        with code.when(self._code.join_conditions(several, code.let(f"icmp eq i64 {only}, 0"))):
            with self._each_active_lane() as (index, address):
                self._count_violation(self._emit_changes_value(index, address), address)
            self._return_if_violated(ViolationKind.LANE_RACE)
