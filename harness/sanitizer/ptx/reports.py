"""Converts the report of a launch to an exception with its line, block and thread."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.sanitizer.check.violations import (
    AccessRuleViolation,
    BarrierDivergence,
    DataRace,
    IntegerOverflow,
    KernelAssertion,
    KernelLocation,
    MisalignedAccess,
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
    Violation,
)
from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ptx.abi import (
    OverflowRecordField,
    PtxRegionField,
    PtxReportField,
    PtxViolationKind,
    RegionSpace,
)
from harness.sanitizer.ptx.launch import Allocation, Dimensions
from harness.sanitizer.ptx.launch_memory import LaunchMemory
from harness.sanitizer.ptx.thread_code import PtxSite

PAST_TENSE = {"read": "read", "write": "wrote", "update": "updated"}
RACES = {
    PtxViolationKind.WRITE_WRITE_RACE: "{one} and {two} write different values to",
    PtxViolationKind.READ_AFTER_WRITE: "{one} writes and {two} reads",
    PtxViolationKind.WRITE_AFTER_READ: "{one} reads and {two} writes",
    PtxViolationKind.ATOMIC_RACE: "{one} and {two} store and update atomically",
}


def describe_line(source: SourceLocation) -> str:
    text = linecache.getline(source.file, source.line).strip()
    short = "/".join(Path(source.file).parts[-3:])
    return f"{short}:{source.line}  {text}".rstrip()


def unravel_thread(number: int, sides: tuple[int, int]) -> Dimensions:
    """Return x, y and z of a thread from its number in a block of this width and height."""
    width, height = sides
    return number % width, number // width % height, number // (width * height)


def locate_report(
    kernel: str, source: SourceLocation, block: Dimensions, thread: Dimensions
) -> KernelLocation:
    text = linecache.getline(source.file, source.line).strip()
    short = "/".join(Path(source.file).parts[-3:])
    inlined = tuple(describe_line(caller) for caller in source.chain[1:])
    return KernelLocation(kernel, short, source.line, text, block, thread, inlined)


def describe_outside(
    address: int, size: int, ends: tuple[int, int], name: str, allocation: Allocation | None
) -> str:
    """Say where an access lies that leaves a region."""
    start, end = ends
    if address >= start:
        position = f"{address + size - end} bytes past the end of {name}"
    else:
        position = f"{start - address} bytes before the start of {name}"
    if allocation is None or not allocation.dtype:
        first = address - start
        return f"{position} (bytes {first}..{first + size} of {end - start})"
    kind = f"{allocation.dtype} {list(allocation.shape)}"
    index = (address - allocation.base) // item_size(allocation)
    return f"{position} (its index {index}, and it is {kind})"


def describe_element(offset: int, name: str, allocation: Allocation | None) -> str:
    """Name the element at an offset in bytes from the start of a region."""
    if allocation is not None and allocation.dtype:
        return f"{name}, index {offset // item_size(allocation)}"
    return f"{name}, byte {offset}"


def describe_neighbour(address: int, others: Iterable[Allocation]) -> tuple[str, ...]:
    """Say in which other tensor an address lies, if in any."""
    for other in others:
        if other.base <= address < other.end:
            return (f"that address is in {other.name}, {address - other.base} bytes into it",)
    return ()


@dataclass(frozen=True, slots=True)
class PtxReport:
    """One report, with the launch that it is about."""

    memory: LaunchMemory

    def build_violation(self) -> Exception:
        return _BUILDERS[self.kind](self)

    @property
    def kind(self) -> PtxViolationKind:
        return PtxViolationKind(self.number(PtxReportField.KIND))

    def number(self, field: PtxReportField) -> int:
        return int(self.memory.report[field])

    @property
    def kernel(self) -> str:
        return self.memory.launch.name

    @property
    def site(self) -> PtxSite:
        return self.memory.lowered.sites[self.number(PtxReportField.SITE)]

    @property
    def block(self) -> Dimensions:
        x, y, z = map(self.number, (PtxReportField.X, PtxReportField.Y, PtxReportField.Z))
        return x, y, z

    def thread_of(self, number: int) -> Dimensions:
        return unravel_thread(number, self.memory.launch.block[:2])

    @property
    def thread(self) -> Dimensions:
        return self.thread_of(self.number(PtxReportField.THREAD))

    @property
    def location(self) -> KernelLocation:
        return locate_report(self.kernel, self.site.source, self.block, self.thread)

    @property
    def past_verb(self) -> str:
        return PAST_TENSE[self.site.label]

    # Where the access was

    @property
    def region(self) -> int:
        return self.number(PtxReportField.REGION)

    @property
    def allocation(self) -> Allocation | None:
        return self.memory.allocations[self.region]

    @property
    def region_name(self) -> str:
        space = RegionSpace(int(self.memory.regions[self.region, PtxRegionField.SPACE]))
        name = self.memory.region_names[self.region]
        words = {RegionSpace.SHARED: "shared memory ", RegionSpace.LOCAL: "local memory "}
        return f"{words.get(space, '')}{name}"

    @property
    def address(self) -> int:
        """The address, for local memory counted from its start."""
        address = self.number(PtxReportField.ADDRESS)
        space = int(self.memory.regions[self.region, PtxRegionField.SPACE])
        if space == RegionSpace.LOCAL:
            thread = self.number(PtxReportField.THREAD)
            return address - self.memory.locals - thread * self.memory.lowered.local_size
        return address

    def describe_position(self) -> str:
        start = int(self.memory.regions[self.region, PtxRegionField.START])
        end = int(self.memory.regions[self.region, PtxRegionField.END])
        size = self.number(PtxReportField.SIZE)
        if self.region == 0:
            return f"address {self.address:#x}, in no tensor that this launch was given"
        if self.allocation is not None and self.allocation.is_pageable:
            return f"{self.region_name}, which is in the host's memory and is not pinned"
        return describe_outside(self.address, size, (start, end), self.region_name, self.allocation)

    def describe_element(self) -> str:
        start = int(self.memory.regions[self.region, PtxRegionField.START])
        return describe_element(self.address - start, self.region_name, self.allocation)

    def describe_neighbour(self) -> tuple[str, ...]:
        own = self.allocation
        address = self.number(PtxReportField.ADDRESS)
        if own is not None and own.is_pageable:
            return ()
        if own is not None and own.storage_base <= address < own.storage_base + own.storage_size:
            return ("still inside the storage that this tensor is a view of",)
        others = (*self.memory.allocations, self.memory.launch.find_allocation(address))
        return describe_neighbour(address, (other for other in others if other and other != own))

    # The violations

    def build_out_of_bounds(self) -> Violation:
        headline = f"{self.kernel} {self.past_verb} {self.describe_position()}"
        details = (f"{self.site.text} of {self.site.size} bytes", *self.describe_neighbour())
        return OutOfBounds(headline, self.location, details)

    def build_misaligned(self) -> Violation:
        size = self.number(PtxReportField.SIZE)
        address = self.number(PtxReportField.ADDRESS)
        headline = (
            f"{self.kernel} {self.past_verb} {size} bytes at an address that is {address % size} "
            f"bytes past a multiple of {size}: {self.describe_element()}"
        )
        return MisalignedAccess(headline, self.location, (self.site.text,))

    def build_rule_violation(self) -> Violation:
        verb = "read" if self.site.label == "read" else "write"
        return AccessRuleViolation(
            f"{self.kernel} {self.past_verb} {self.describe_element()}, outside of what block "
            f"{self.block} may {verb}",
            self.location,
        )

    def build_uninitialized(self) -> Violation:
        return UninitializedMemory(
            f"{self.kernel} {self.past_verb} uninitialized memory: {self.describe_element()}",
            self.location,
        )

    def build_uninitialized_product(self) -> Violation:
        return UninitializedMemory(
            f"{self.kernel} {self.past_verb} {self.describe_element()}, which depends on "
            "uninitialized shared memory",
            self.location,
            ("it was loaded by ldmatrix, and is a factor of a product (mma)",),
        )

    def build_race(self) -> Violation:
        other = self.number(PtxReportField.OTHER)
        one, two = "another block", f"block {self.block}"
        if other >= 0:
            one, two = f"thread {self.thread_of(other)} of {two}", f"thread {self.thread}"
        race = RACES[self.kind].format(one=one, two=two)
        return DataRace(
            f"{self.kernel}: {race} {self.describe_element()}, without an order", self.location
        )

    def build_copy_in_progress(self) -> Violation:
        other = self.thread_of(self.number(PtxReportField.OTHER))
        return DataRace(
            f"{self.kernel}: thread {self.thread} reads {self.describe_element()}, into which an "
            f"asynchronous copy of thread {other} has not been waited for",
            self.location,
            ("it is complete after cp.async.wait_group or wait_all of the thread that copies",),
        )

    def build_copy_without_barrier(self) -> Violation:
        other = self.thread_of(self.number(PtxReportField.OTHER))
        return DataRace(
            f"{self.kernel}: thread {self.thread} reads {self.describe_element()}, and no barrier "
            f"follows the wait of thread {other} for its asynchronous copy into it",
            self.location,
        )

    def build_overflow(self) -> Violation:
        row = self.memory.overflows[self.number(PtxReportField.OTHER)]
        site = self.memory.lowered.sites[int(row[OverflowRecordField.SITE])]
        fields = OverflowRecordField.TRUE_VALUE, OverflowRecordField.WRAPPED_VALUE
        true, wrapped = (int(row[field]) for field in fields)
        details = [
            f"{true} became {wrapped} in 32 bits ({site.text})",
            f"{self.site.label} through that address at {describe_line(self.site.source)}",
        ]
        if self.region:
            details.append(f"which is {self.describe_element()}")
        return IntegerOverflow(
            f"{self.kernel}: an integer overflows on its way into an address",
            locate_report(self.kernel, site.source, self.block, self.thread),
            tuple(details),
        )

    def build_assertion(self) -> Violation:
        return KernelAssertion(
            f"{self.kernel}: its own assertion fails: {self.site.text}", self.location
        )

    def build_trap(self) -> Violation:
        return KernelAssertion(f"{self.kernel}: it stops itself (trap)", self.location)

    def build_divergence(self) -> Violation:
        other = self.memory.lowered.sites[self.number(PtxReportField.OTHER)]
        return BarrierDivergence(
            f"{self.kernel}: lanes of one warp wait at different barriers",
            self.location,
            (f"the lane before it waits at {describe_line(other.source)}",),
        )

    def build_missing_lanes(self) -> Violation:
        group = self.number(PtxReportField.OTHER)
        missing = [lane for lane in range(32) if not group >> lane & 1]
        return BarrierDivergence(
            f"{self.kernel}: {self.site.label} needs all 32 lanes of a warp",
            self.location,
            (f"lanes that have exited, or that the block does not have: {missing}",),
        )

    def build_deadlock(self) -> Exception:
        if self.number(PtxReportField.OTHER):
            return UncheckableKernel(
                f"{self.kernel}: block {self.block} waits for another block, and the executor runs "
                f"them one after the other\n  {self.location}"
            )
        return BarrierDivergence(
            f"{self.kernel}: threads wait in vain ({self.site.label})",
            self.location,
            ("the other threads of the block wait elsewhere or have exited",),
        )


_BUILDERS: dict[PtxViolationKind, Callable[[PtxReport], Exception]] = {
    PtxViolationKind.OUT_OF_BOUNDS: PtxReport.build_out_of_bounds,
    PtxViolationKind.MISALIGNED: PtxReport.build_misaligned,
    PtxViolationKind.FORBIDDEN_READ: PtxReport.build_rule_violation,
    PtxViolationKind.FORBIDDEN_WRITE: PtxReport.build_rule_violation,
    PtxViolationKind.UNINITIALIZED_READ: PtxReport.build_uninitialized,
    **dict.fromkeys(RACES, PtxReport.build_race),
    PtxViolationKind.COPY_IN_PROGRESS: PtxReport.build_copy_in_progress,
    PtxViolationKind.COPY_WITHOUT_BARRIER: PtxReport.build_copy_without_barrier,
    PtxViolationKind.OVERFLOW: PtxReport.build_overflow,
    PtxViolationKind.ASSERTION: PtxReport.build_assertion,
    PtxViolationKind.TRAP: PtxReport.build_trap,
    PtxViolationKind.DIVERGENT_BARRIER: PtxReport.build_divergence,
    PtxViolationKind.DEADLOCK: PtxReport.build_deadlock,
    PtxViolationKind.MISSING_LANES: PtxReport.build_missing_lanes,
    PtxViolationKind.UNINITIALIZED_PRODUCT: PtxReport.build_uninitialized_product,
}


def item_size(allocation: Allocation) -> int:
    """Return the bytes of an element, from its type's name: 2 for `bfloat16`."""
    name = allocation.dtype
    if name == "bool":
        return 1
    digits = "".join(letter if letter.isdigit() else " " for letter in name).split()
    if not digits:
        return 1
    return max(1, int(digits[0]) // 8)
