"""The allocations of a process's devices, who accessed each, and the graphs that captured accesses.

Graphs of one pool share its memory on purpose: a capture gets what earlier ones of the pool have
freed, so a replay of one may overwrite what another one computed. A server captures all sizes of a
batch into one pool. Eager code may use such memory, too: a server gives free bytes of its pool to
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

from harness.sanitizer.launches.byte_spans import (
    AccessedBytes,
    Span,
    find_element_bytes,
    merge_spans,
    subtract_spans,
)
from harness.sanitizer.launches.call_stacks import CallStack, format_stack
from harness.sanitizer.launches.device_launch import (
    ArgumentUse,
    DeviceLaunch,
    Stream,
    format_stream,
)
from harness.sanitizer.launches.host_values import CapturedNumber

_MAX_EAGER_WRITES = 64
_MAX_WRITTEN_SPANS = 4096
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
    written_at: int = 0  # as a whole, by others than its own graph
    written_spans: list[tuple[Span, int]] = field(default_factory=list)  # since, each with when

    def overlaps(self, other: DeviceAllocation) -> bool:
        return self.start < other.end and other.start < self.end

    @property
    def in_graph_pool(self) -> bool:
        return self.capture is not None

    @property
    def last_written_at(self) -> int:
        return max(self.written_at, self.capture.replayed_at if self.capture is not None else 0)

    def note_write(self, access: MemoryAccess, moment: int) -> None:
        """Note what others than its own graph write; unknown elements count as all of a tensor."""
        spans = access.list_spans() or [(access.start, access.end)]
        if spans[0][0] <= self.start and self.end <= spans[0][1]:
            self.written_at, self.written_spans = moment, []
            return
        added = set(spans)
        known = [one for one in self.written_spans if one[1] > self.last_written_at]
        known = [one for one in known if one[0] not in added] + [(one, moment) for one in spans]
        if len(known) > _MAX_WRITTEN_SPANS:
            known = [(span, moment) for span in merge_spans(span for span, _ in known)]
        self.written_spans = known

    def list_spans_written_after(self, moment: int) -> list[Span]:
        return merge_spans(span for span, written_at in self.written_spans if written_at > moment)

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
    elements: AccessedBytes | None  # None if it may be some of them alone
    tensor: Any  # a weak reference
    updates: bool = False  # it reads what it writes
    is_alias: bool = False  # the tensor does not own the allocation that has its bytes

    @property
    def reads(self) -> bool:
        return not self.writes or self.updates

    def list_spans(self) -> list[Span] | None:
        """List the spans that it surely accesses; None if they are unknown, or too many."""
        return None if self.elements is None else self.elements.list_spans()

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
    spans: list[Span] = field(default_factory=list)  # sorted, of what graphs write
    eager_writes: deque[tuple[int, MemoryAccess]] = field(
        default_factory=lambda: deque(maxlen=_MAX_EAGER_WRITES)
    )

    def add_graph(self, graph: ReplayableGraph) -> None:
        self.graphs = [one for one in self.graphs if one.graph() is not None]
        self.graphs.append(graph)

    def add_spans(self, graph: ReplayableGraph) -> None:
        """Add what a graph writes; spans that touch become one."""
        added = {(access.start, access.end) for access in graph.pool_writes}
        self.spans = merge_spans({*self.spans, *added})

    def overlaps(self, allocation: DeviceAllocation) -> bool:
        """Return whether an allocation has bytes that graphs of the pool write."""
        place = bisect.bisect_left(self.spans, (allocation.end, 0)) - 1
        return place >= 0 and self.spans[place][1] > allocation.start

    def note_replay(self, graph: ReplayableGraph) -> None:
        self.written_at = graph.replayed_at = next(_moments)

    def note_write(self, access: MemoryAccess) -> None:
        """Note what eager code writes into a tensor of the pool."""
        self.written_at = next(_moments)
        access.allocation.note_write(access, self.written_at)
        if access.allocation.capture is None and access.elements is not None:
            self.eager_writes.append((self.written_at, access))

    def iterate_writes_after(self, moment: int) -> Iterator[tuple[int, MemoryAccess]]:
        """Iterate the writes of replays and of eager code, each with its moment."""
        for graph in self.graphs:
            if graph.replayed_at > moment:
                yield from ((graph.replayed_at, access) for access in graph.pool_writes)
        for written_at, access in self.eager_writes:
            if written_at > moment:
                yield written_at, access


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
        if access.elements is None or access.is_alias:
            return
        is_others = access.reads and access.allocation.capture is not self
        if is_others and not self._writes_before(access):
            self.pool_reads.append(access)
        if access.writes:
            self.pool_writes.append(access)

    def _writes_before(self, access: MemoryAccess) -> bool:
        own = [
            write.list_spans()
            for write in self.pool_writes
            if write.allocation is access.allocation
        ]
        written = merge_spans(span for spans in own for span in spans or ())
        return not subtract_spans(access.list_spans() or [], written)


def make_access(
    launch: DeviceLaunch, use: ArgumentUse, allocation: DeviceAllocation
) -> MemoryAccess:
    start, end = find_extent(use.tensor)
    is_contiguous = use.tensor.is_contiguous()
    elements = None
    if is_contiguous and not use.partial:
        elements = AccessedBytes(start, end - start)
    elif use.follows_strides and not use.partial:
        elements = find_element_bytes(use.tensor, start)
    kind = str(use.tensor.dtype).removeprefix("torch.")
    return MemoryAccess(
        launch,
        allocation,
        use.name,
        f"{kind} {list(use.tensor.shape)}",
        start,
        end,
        use.writes,
        use.partial or not is_contiguous,
        elements,
        weakref.ref(use.tensor),
        use.updates,
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
