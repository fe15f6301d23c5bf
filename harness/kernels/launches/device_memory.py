"""The allocations of a process's devices: where each was made and freed, and who accessed it.

Invariant: an address belongs to one living allocation at most. An allocation that begins inside an
older one means that the older one was freed.
"""

from __future__ import annotations

import bisect
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.kernels.launches.call_stacks import CallStack, format_stack
from harness.kernels.launches.device_launch import (
    ArgumentUse,
    DeviceLaunch,
    Stream,
    format_stream,
)


@dataclass(eq=False, slots=True)
class DeviceAllocation:
    start: int
    size: int
    stream: Stream  # the stream that it was allocated for, to which the allocator returns it
    allocated_at: CallStack
    in_graph_pool: bool = False
    freed_at: CallStack | None = None
    # Of the check of streams
    accesses: list[MemoryAccess] = field(default_factory=list)
    recorded_streams: set[Stream] = field(default_factory=set)  # by `record_stream`
    early_reuse: FreedTooEarly | None = None
    # Of the check of graphs
    is_captured: bool = False  # a launch of a graph has an address in it
    targets: tuple[DeviceAllocation, ...] = ()  # it is a table of addresses in these

    @property
    def end(self) -> int:
        """The address behind it; of one whose size is not known yet, behind its first byte."""
        return self.start + max(self.size, 1)


@dataclass(frozen=True, slots=True)
class FreedTooEarly:
    """A freed allocation, and the accesses that its stream did not wait for."""

    allocation: DeviceAllocation
    accesses: tuple[MemoryAccess, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryAccess:
    """The bytes that a launch reads or writes through one argument."""

    launch: DeviceLaunch
    allocation: DeviceAllocation
    argument: str
    description: str  # the tensor's dtype and shape
    start: int
    end: int
    writes: bool
    partial: bool
    tensor: Any  # a weak reference

    @property
    def verb(self) -> str:
        return "writes" if self.writes else "reads"

    def describe(self, verb: str) -> str:
        stream = f"on stream {format_stream(self.launch.stream)}"
        return (
            f"{self.launch.name} {self.verb} {self.argument} {self.description} {stream}, "
            f"{verb} {format_stack(self.launch.stack)}"
        )


def make_access(
    launch: DeviceLaunch, use: ArgumentUse, allocation: DeviceAllocation
) -> MemoryAccess:
    start, end = find_extent(use.tensor)
    kind = str(use.tensor.dtype).removeprefix("torch.")
    return MemoryAccess(
        launch,
        allocation,
        use.name,
        f"{kind} {list(use.tensor.shape)}",
        start,
        end,
        use.writes,
        use.partial or not use.tensor.is_contiguous(),
        weakref.ref(use.tensor),
    )


def find_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and behind its last one."""
    storage, size = tensor.untyped_storage(), tensor.element_size()
    start = storage.data_ptr() + tensor.storage_offset() * size
    if not tensor.numel():
        return start, start
    last = sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


class AllocationTable:
    """The living allocations by their start."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, DeviceAllocation] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, allocation: DeviceAllocation) -> list[DeviceAllocation]:
        """Add an allocation, and return those that it shows to be gone."""
        gone = self._list_overlapping(allocation.start, allocation.end)
        for one in gone:
            self.remove(one)
        bisect.insort(self._starts, allocation.start)
        self._by_start[allocation.start] = allocation
        return gone

    def remove(self, allocation: DeviceAllocation) -> None:
        if self._by_start.get(allocation.start) is allocation:
            del self._by_start[allocation.start]
            del self._starts[bisect.bisect_left(self._starts, allocation.start)]

    def get(self, start: int) -> DeviceAllocation | None:
        return self._by_start.get(start)

    def find(self, address: int) -> DeviceAllocation | None:
        """Return the allocation that an address is in, if it is known."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        allocation = self._by_start[self._starts[place]]
        return allocation if address < allocation.end else None

    def _list_overlapping(self, start: int, end: int) -> list[DeviceAllocation]:
        first = bisect.bisect_left(self._starts, start)
        if first and self._by_start[self._starts[first - 1]].end > start:
            first -= 1
        last = bisect.bisect_left(self._starts, end)
        return [self._by_start[one] for one in self._starts[first:last]]
