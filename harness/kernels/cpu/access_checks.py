"""The checks of an access in LLVM: one function for each verb and element size, compiled once.

A kernel passes a block of addresses, its mask, and the region that its pointers may reach. Causes
are checked before what follows from them: overflow, bounds, access rules, initialization, races.
The first violation goes into the report and the kernel returns 1, with nothing read or written.
Example: `unfix_read4` reads a block of int32. All checks on a CPU are here and in `race_checks`.
"""

from __future__ import annotations

from harness.kernels.cpu.abi import (
    MAX_OVERFLOWS,
    LaunchField,
    OverflowField,
    RegionField,
    ViolationKind,
)
from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.cpu.race_checks import RaceCheckedAccess, build_is_ordered

ACCESS_SIZES = (1, 2, 4, 8)
_PARAMETER_TYPES = "ptr, i64, ptr, i64, ptr, ptr, ptr, ptr, ptr"


def declare_access_functions(text: str) -> str:
    """Declare the access functions that a kernel's module calls."""
    types = {"unfix_record_overflow": "ptr, i64, i64, i64, i64"}
    lines = [
        f"declare i32 @{name}({types.get(name, _PARAMETER_TYPES)})"
        for name in list_access_functions()
        if f"@{name}(" in text
    ]
    return "\n".join(lines) + "\n"


def build_access_module() -> str:
    parts = [str(_build_find_region()), str(_build_record_overflow()), str(build_is_ordered())]
    for verb in ("read", "write", "update"):
        parts += [str(_CheckedAccess(verb, size).function) for size in ACCESS_SIZES]
    return "\n".join(parts)


def list_access_functions() -> list[str]:
    verbs = ("read", "write", "update")
    return [
        *(f"unfix_{verb}{size}" for verb in verbs for size in ACCESS_SIZES),
        "unfix_record_overflow",
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
    with code.when(code.let(f"icmp ne i64 {only}, 0")):
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
    code.emit(f"ret i32 {code.let(f'trunc i64 {number} to i32')}")
    return code


class _CheckedAccess(RaceCheckedAccess):
    """Reads, stores or atomic updates of elements of one size."""

    def __init__(self, access: str, size: int) -> None:
        super().__init__(access, size)
        code = self._code
        self._check_overflow()
        self._check_unknown_origin()
        self._check_bounds()
        if self.access != "write":
            self._check_access_rules(RegionField.READ_RULES, ViolationKind.FORBIDDEN_READ)
        if self.access != "read":
            self._check_access_rules(RegionField.WRITE_RULES, ViolationKind.FORBIDDEN_WRITE)
        self._check_initialized()
        {
            "read": self._check_read_races,
            "write": self._check_write_races,
            "update": self._check_atomic_races,
        }[self.access]()
        if self.access == "read":
            self._emit_load()
        elif self.access == "write":
            self._emit_store()
        code.emit("ret i32 0")

    # The checks

    def _check_overflow(self) -> None:
        code = self._code
        with (
            code.when(code.let("icmp ne ptr %states, null")),
            self._each_active_lane() as (index, address),
        ):
            state = code.load_element("i32", "%states", index)
            with code.when(code.let(f"icmp ne i32 {state}, 0"), exits=True):
                self._emit_report(
                    ViolationKind.OVERFLOW, address, "1", code.let(f"zext i32 {state} to i64")
                )

    def _check_unknown_origin(self) -> None:
        """Find each lane's region, for pointers loaded from memory or of several tensors."""
        code = self._code
        with code.when(code.let("icmp eq ptr %region, null"), exits=True):
            with self._each_active_lane() as (index, address):
                region = code.let(f"call ptr @find(ptr %context, i64 {address})")
                with code.when(code.let(f"icmp eq ptr {region}, null"), exits=True):
                    self._emit_report(ViolationKind.OUT_OF_BOUNDS, address, "1", "0")
                value = code.element_pointer("%values", self.llvm_type, index)
                place = code.element_pointer("%addresses", "i64", index)
                violated = code.let(
                    f"call i32 @{self.name}(ptr %context, i64 %site, ptr {region}, i64 1,"
                    f" ptr {place}, ptr null, ptr null, ptr {value}, ptr null)"
                )
                with code.when(code.let(f"icmp ne i32 {violated}, 0"), exits=True):
                    code.emit("ret i32 1")
            if self.access == "read":
                self._fill_masked_lanes()
            elif self.access == "write":
                self._check_lane_races()
            code.emit("ret i32 0")

    def _check_bounds(self) -> None:
        code = self._code
        start, end = (
            code.load_field("%region", place) for place in (RegionField.START, RegionField.END)
        )
        last_offset = code.let(f"sub i64 {code.let(f'sub i64 {end}, {start}')}, {self.size}")
        is_empty = code.let(f"icmp slt i64 {last_offset}, 0")
        with self._each_active_lane() as (_, address):
            is_outside = code.let(
                f"icmp ugt i64 {code.let(f'sub i64 {address}, {start}')}, {last_offset}"
            )
            self._count_violation(code.let(f"or i1 {is_outside}, {is_empty}"), address)
            code.increment(self._active_lanes, "1")
        self._return_if_violated(ViolationKind.OUT_OF_BOUNDS)

    def _check_access_rules(self, rules_field: RegionField, violation: ViolationKind) -> None:
        code = self._code
        table = code.load_field("%region", rules_field)
        with code.when(code.let(f"icmp ne i64 {table}, 0")):
            masks = code.to_pointer(table)
            mask = code.load_field(masks, code.load_context(LaunchField.PROGRAM_ORDINAL))
            allowed = code.to_pointer(mask)
            last = code.let(f"sub i64 {code.load_field('%region', RegionField.STORAGE_SIZE)}, 1")
            with (
                code.when(code.let(f"icmp ne i64 {mask}, 0")),
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
        with code.when(code.let(f"icmp ne i64 {shadow}, 0")):
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
        with code.when(self._emit_and(several, code.let(f"icmp eq i64 {only}, 0"))):
            with self._each_active_lane() as (index, address):
                self._count_violation(self._emit_changes_value(index, address), address)
            self._return_if_violated(ViolationKind.LANE_RACE)
