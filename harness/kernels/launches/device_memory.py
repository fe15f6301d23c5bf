"""The allocations of a process's devices, who accessed each, and the graphs that captured accesses.

Graphs of one pool share its memory on purpose: a capture gets what earlier ones of the pool have
freed, so a replay of one may overwrite what another one computed. SGLang captures all sizes of a
batch into one pool. Eager code may use such memory, too: SGLang gives free bytes of its pool to
tensors between replays.
"""

from __future__ import annotations

import bisect
import itertools
import weakref
from collections import deque
from collections.abc import Iterator
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
from harness.kernels.launches.host_values import CapturedNumber

_MAX_EAGER_WRITES = 64
_moments = itertools.count(1)


@dataclass(eq=False, slots=True)
class DeviceAllocation:
    start: int
    size: int
    stream: Stream  # the stream that it was allocated for, to which the allocator returns it
    allocated_at: CallStack
    capture: ReplayableGraph | None = None  # that allocated it in its pool
    freed_at: CallStack | None = None
    # Of the check of streams
    accesses: list[MemoryAccess] = field(default_factory=list)
    recorded_streams: set[Stream] = field(default_factory=set)  # by `record_stream`
    early_reuse: FreedTooEarly | None = None
    # Of the check of graphs
    is_captured: bool = False  # a launch of a graph has an address in it
    targets: tuple[DeviceAllocation, ...] = ()  # it is a table of addresses in these
    pool: GraphPool | None = None  # that its bytes belong to
    storage: int = 0  # of a pool: its first tensor's storage, by the address of the object
    written_at: int = 0  # by others than its own graph

    def overlaps(self, other: DeviceAllocation) -> bool:
        return self.start < other.end and other.start < self.end

    @property
    def in_graph_pool(self) -> bool:
        return self.capture is not None

    @property
    def last_written_at(self) -> int:
        return max(self.written_at, self.capture.replayed_at if self.capture is not None else 0)

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
    is_alias: bool = False  # the tensor does not own the allocation that has its bytes

    @property
    def verb(self) -> str:
        return "writes" if self.writes else "reads"

    def describe(self, verb: str) -> str:
        stream = f"on stream {format_stream(self.launch.stream)}"
        return (
            f"{self.launch.name} {self.verb} {self.argument} {self.description} {stream}, "
            f"{verb} {format_stack(self.launch.stack)}"
        )


@dataclass(eq=False)
class GraphPool:
    """The memory of all captures with one handle."""

    graphs: list[ReplayableGraph] = field(default_factory=list)
    written_at: int = 0  # the moment of the last replay or eager write
    spans: list[tuple[int, int]] = field(default_factory=list)  # sorted, of what graphs write
    eager_writes: deque[tuple[int, MemoryAccess]] = field(
        default_factory=lambda: deque(maxlen=_MAX_EAGER_WRITES)
    )

    def add_graph(self, graph: ReplayableGraph) -> None:
        self.graphs = [one for one in self.graphs if one.graph() is not None]
        self.graphs.append(graph)

    def add_spans(self, graph: ReplayableGraph) -> None:
        """Add what a graph writes; spans that touch become one."""
        added = {(access.start, access.end) for access in graph.pool_writes}
        merged: list[tuple[int, int]] = []
        for start, end in sorted({*self.spans, *added}):
            if merged and start <= merged[-1][1]:
                start, last = merged.pop()
                end = max(end, last)
            merged.append((start, end))
        self.spans = merged

    def overlaps(self, allocation: DeviceAllocation) -> bool:
        """Return whether an allocation has bytes that graphs of the pool write."""
        place = bisect.bisect_left(self.spans, (allocation.end, 0)) - 1
        return place >= 0 and self.spans[place][1] > allocation.start

    def note_replay(self, graph: ReplayableGraph) -> None:
        self.written_at = graph.replayed_at = next(_moments)

    def note_write(self, access: MemoryAccess) -> None:
        """Note what eager code writes into a tensor of the pool."""
        self.written_at = access.allocation.written_at = next(_moments)
        if access.allocation.capture is None and not access.partial:
            self.eager_writes.append((self.written_at, access))

    def iterate_writes_after(self, moment: int) -> Iterator[MemoryAccess]:
        for graph in self.graphs:
            if graph.replayed_at > moment:
                yield from graph.pool_writes
        for written_at, access in self.eager_writes:
            if written_at > moment:
                yield access


@dataclass(eq=False)
class ReplayableGraph:
    """A graph that can be replayed once its capture has ended, and what its launches access."""

    graph: Any  # a weak reference
    pool: GraphPool
    accesses: list[MemoryAccess] = field(default_factory=list)  # outside of its pool
    pool_reads: list[MemoryAccess] = field(default_factory=list)  # of what others put there
    pool_writes: list[MemoryAccess] = field(default_factory=list)
    values: list[CapturedNumber] = field(default_factory=list)
    launches: int = 0
    is_captured: bool = False
    replayed_at: int = 0

    @property
    def can_be_replayed(self) -> bool:
        return self.is_captured and self.graph() is not None

    def owns(self, allocation: DeviceAllocation) -> bool:
        return allocation.capture is not None and allocation.pool is self.pool

    def add_pool_access(self, access: MemoryAccess) -> None:
        """Add an access of its own pool's memory, which may be another graph's tensor."""
        if access.partial or access.is_alias:
            return
        if access.writes:
            self.pool_writes.append(access)
        elif access.allocation.capture is not self and not self._writes_before(access):
            self.pool_reads.append(access)

    def _writes_before(self, access: MemoryAccess) -> bool:
        return any(
            one.allocation is access.allocation
            and one.start <= access.start
            and access.end <= one.end
            for one in self.pool_writes
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
        allocation.storage not in (0, use.tensor.untyped_storage()._cdata),
    )


def find_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and behind its last one."""
    storage, size = tensor.untyped_storage(), tensor.element_size()
    start = storage.data_ptr() + tensor.storage_offset() * size
    if not tensor.numel():
        return start, start
    last = sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size
