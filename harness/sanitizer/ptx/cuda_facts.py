"""The facts of a violation by a CUDA kernel: those of both executions, and those of the executor's.

The executor fills a row of numbers (`abi.PtxReportField`); a kernel with checks in its PTX writes a
record (`cuda.card_facts`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace

from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ptx.abi import (
    OverflowRecordField,
    PtxRegionField,
    PtxReportField,
    RegionSpace,
)
from harness.sanitizer.ptx.launch import Allocation, Dimensions
from harness.sanitizer.ptx.launch_memory import LaunchMemory
from harness.sanitizer.ptx.thread_code import PtxSite
from harness.sanitizer.violations.exceptions import KernelLocation
from harness.sanitizer.violations.facts import (
    ViolationFacts,
    describe_line,
    read_line,
    shorten_path,
)
from harness.sanitizer.violations.kinds import FORBIDDEN, ViolationKind
from harness.sanitizer.violations.named_memory import (
    IN_OWN_STORAGE,
    NamedMemory,
    describe_inside,
    describe_unknown,
    name_element,
)

_SPACE_WORDS = {RegionSpace.SHARED: "shared memory ", RegionSpace.LOCAL: "local memory "}


class CudaFacts(ViolationFacts):
    kernel: str
    size: int  # bytes of the access
    block: Dimensions
    thread: Dimensions
    instruction: str  # of the access or the operation that failed, as PTX names it
    source: SourceLocation  # its line

    @property
    def location(self) -> KernelLocation:
        return self._locate(self.source)

    @property
    @abstractmethod
    def overflow_source(self) -> SourceLocation: ...

    @property
    def overflow_location(self) -> KernelLocation:
        return self._locate(self.overflow_source)

    def _locate(self, source: SourceLocation) -> KernelLocation:
        callers = tuple(map(describe_line, source.chain[1:]))
        path, text = shorten_path(source.file), read_line(source)
        return KernelLocation(
            self.kernel, path, source.line, text, self.block, self.thread, callers
        )

    @property
    def operation(self) -> str:
        return f"{self.instruction} of {self.size} bytes"

    @property
    def message(self) -> str:
        return self.instruction


class ExecutorFacts(CudaFacts):
    def __init__(self, memory: LaunchMemory) -> None:
        numbers = {field: int(memory.report[field]) for field in PtxReportField}
        self._memory, self.kernel = memory, memory.launch.name
        self.kind = ViolationKind(numbers[PtxReportField.KIND])
        self._site = site = memory.lowered.sites[numbers[PtxReportField.SITE]]
        self.verb, self.instruction, self.source = site.label, site.text, site.source
        self.size, self._other = numbers[PtxReportField.SIZE], numbers[PtxReportField.OTHER]
        x, y, z = (numbers[f] for f in (PtxReportField.X, PtxReportField.Y, PtxReportField.Z))
        thread = numbers[PtxReportField.THREAD]
        self.block, self.thread = (x, y, z), self._find_thread(thread)
        self._region = numbers[PtxReportField.REGION]
        self._space = RegionSpace(int(memory.regions[self._region, PtxRegionField.SPACE]))
        self._allocation = memory.allocations[self._region]
        self._pointer = self.address = numbers[PtxReportField.ADDRESS]
        if self._space is RegionSpace.LOCAL:  # counts from the start of the thread's own
            self.address -= memory.locals + thread * memory.lowered.local_size
        if self.kind is ViolationKind.DEADLOCK and self._other:
            self.kind = ViolationKind.ENDLESS_WAIT

    def _find_thread(self, number: int) -> Dimensions:
        return unravel_thread(number, self._memory.launch.block[:2])

    @property
    def operation(self) -> str:
        return f"{self.instruction} of {self._site.size} bytes"

    @property
    def misalignment(self) -> int:
        return self._pointer % self.size

    # Where the address lies

    @property
    def memory(self) -> NamedMemory | None:
        if not self._region:
            return None
        name = _SPACE_WORDS.get(self._space, "") + self._memory.region_names[self._region]
        if self._allocation is not None:
            return replace(self._allocation.memory, name=name)
        row = self._memory.regions[self._region]
        return NamedMemory(name, int(row[PtxRegionField.START]), int(row[PtxRegionField.END]))

    @property
    def place(self) -> str:
        memory = self.memory
        if memory is None:
            return describe_unknown(self.address)
        if self._allocation is not None and self._allocation.is_pageable:
            return f"{memory.name}, which is in the host's memory and is not pinned"
        return memory.describe_outside(self.address, self.size)

    @property
    def neighbour(self) -> str:
        own, address = self._allocation, self._pointer
        if own is not None and own.is_pageable:
            return ""
        if own is not None and own.storage_base <= address < own.storage_base + own.storage_size:
            return IN_OWN_STORAGE
        known = (*self._memory.allocations, self._memory.launch.find_allocation(address))
        return describe_neighbour(address, (one for one in known if one and one != own))

    @property
    def element(self) -> str:
        allocation = self._allocation
        if self.kind not in FORBIDDEN.values() or allocation is None or not allocation.strides:
            return super().element
        number = allocation.memory.index_of(self.address)
        return name_element(allocation.name, number, allocation.shape, allocation.strides)

    # Integer overflow

    @property
    def overflow_source(self) -> SourceLocation:
        return self._overflow[0].source

    @property
    def arithmetic(self) -> str:
        site, true, wrapped = self._overflow
        return describe_wrap(true, wrapped, site.text)

    @property
    def _overflow(self) -> tuple[PtxSite, int, int]:
        row = self._memory.overflows[self._other]
        true, wrapped = row[OverflowRecordField.TRUE_VALUE], row[OverflowRecordField.WRAPPED_VALUE]
        site = self._memory.lowered.sites[int(row[OverflowRecordField.SITE])]
        return site, int(true), int(wrapped)

    # Other threads

    @property
    def actor(self) -> str:
        return f"thread {self.thread}" if self._other >= 0 else self.runner

    @property
    def other(self) -> str:
        return f"{self.other_thread} of {self.runner}" if self._other >= 0 else super().other

    @property
    def other_thread(self) -> str:
        return f"thread {self._find_thread(self._other)}"

    @property
    def other_place(self) -> str:
        return describe_line(self._memory.lowered.sites[self._other].source)

    @property
    def missing(self) -> list[int]:
        return [lane for lane in range(32) if not self._other >> lane & 1]


def unravel_thread(number: int, sides: tuple[int, int]) -> Dimensions:
    """Return x, y and z of a thread from its number in a block of this width and height."""
    width, height = sides
    return number % width, number // width % height, number // (width * height)


def describe_neighbour(address: int, others: Iterable[Allocation]) -> str:
    """Say in which other tensor an address lies, if in any."""
    for other in others:
        if other.base <= address < other.end:
            return describe_inside(other.name, address - other.base)
    return ""


def describe_wrap(true: int, wrapped: int, instruction: str) -> str:
    return f"{true} became {wrapped} in 32 bits ({instruction})"
