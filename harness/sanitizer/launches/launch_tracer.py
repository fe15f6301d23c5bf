"""Turns the events of a device into launches and allocations, and hands them to the checks.

A source calls this: `virtual_source` for the virtual GPU, `card_source` for a GPU. A source knows
streams (`DeviceClocks`) and calls `allocate`, `free`, `launch`, and what a graph does.

Invariant: while a stream is capturing, its launches are ordered among themselves alone, since none
of them runs. A replay is one launch that does all of theirs.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from harness.sanitizer.device.streams import Clock, Event
from harness.sanitizer.launches import LAUNCH_CHECKS, host_values
from harness.sanitizer.launches.allocation_table import AllocationTable
from harness.sanitizer.launches.call_stacks import CallStack, capture_stack
from harness.sanitizer.launches.captured_parts import CapturedPart, join_parts
from harness.sanitizer.launches.device_launch import ArgumentUse, DeviceLaunch, Stream
from harness.sanitizer.launches.device_memory import (
    DeviceAllocation,
    GraphPool,
    ReplayableGraph,
    make_access,
)
from harness.sanitizer.launches.graph_check import GraphCheck
from harness.sanitizer.launches.stream_check import StreamCheck
from harness.sanitizer.violations.exceptions import Violation

GRAPHS, STREAMS = LAUNCH_CHECKS
_MAX_TABLE = 1 << 16  # elements of a host tensor that is searched for addresses
_SMALLEST_ADDRESS = 1 << 20


class DeviceClocks(Protocol):
    """The order of a device's launches."""

    def get_current_stream(self) -> Stream: ...

    def advance(self, stream: Stream) -> tuple[int, Clock]:
        """Count a launch of a stream; return its number and what happened before it."""
        ...

    def get_clock(self, stream: Stream) -> Clock:
        """Return what happens before a stream's next launch."""
        ...


@dataclass(slots=True)
class LaunchCounts:
    """What a process launched; `unknown` of them may access more than was seen."""

    launches: int = 0
    captured: int = 0
    unknown: int = 0
    allocations: int = 0
    graphs: int = 0
    replays: int = 0


class LaunchTracer:
    def __init__(
        self,
        checks: Sequence[str],
        clocks: DeviceClocks,
        report: Callable[[Violation], None],
        may_reuse: Callable[[DeviceAllocation, DeviceAllocation], bool],
    ) -> None:
        self.counts = LaunchCounts()
        self._clocks = clocks
        self._memory = AllocationTable()
        self._graph_check = GraphCheck(report) if GRAPHS in checks else None
        self._stream_check = StreamCheck(report, may_reuse) if STREAMS in checks else None
        self._capture: ReplayableGraph | None = None
        self._capturing_thread = 0
        self._pools: weakref.WeakValueDictionary[object, GraphPool] = weakref.WeakValueDictionary()
        self._replayed: weakref.WeakKeyDictionary[Any, list[CapturedPart]] = (
            weakref.WeakKeyDictionary()
        )
        self._captured_parts = [CapturedPart()]
        self._captured_events: weakref.WeakSet[Event] = weakref.WeakSet()
        self._freed: deque[tuple[int, CallStack]] = deque()
        self._lock = threading.RLock()
        self._thread = threading.local()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Ignore this thread's events: they are part of one that is reported as a whole."""
        before, self._thread.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self._thread.is_paused = before

    @property
    def is_paused(self) -> bool:
        return getattr(self._thread, "is_paused", False)

    # Memory

    @property
    def _is_capturing(self) -> bool:
        return self._capture is not None and self._capturing_thread == threading.get_ident()

    def allocate(self, start: int, size: int) -> None:
        """Note new memory; while this thread captures a graph, it belongs to the graph's pool.

        It reports nothing: the allocator may have called, which swallows errors.
        """
        if self.is_paused or not start:
            return
        with self._lock:
            self._end_freed()
            self.counts.allocations += 1
            capture = self._capture if self._is_capturing else None
            allocation = self._allocate(start, size, capture)
            if capture is not None:
                allocation.pool = capture.pool
            else:
                pools = list(self._pools.values())
                allocation.pool = next((pool for pool in pools if pool.overlaps(allocation)), None)
            if allocation.pool is not None:
                allocation.written_at = allocation.pool.written_at  # what was there before is gone

    def _allocate(
        self, start: int, size: int, capture: ReplayableGraph | None = None
    ) -> DeviceAllocation:
        stream = self._clocks.get_current_stream()
        allocation = DeviceAllocation(start, size, stream, capture_stack(), capture)
        for gone in self._memory.add(allocation):
            self._end(gone, allocation.allocated_at)
        if self._stream_check is not None:
            self._stream_check.allocate(allocation, self._clocks.get_clock(stream))
        if self._graph_check is not None:
            self._graph_check.allocate(allocation)
        return allocation

    def free(self, start: int) -> None:
        """Note that memory is freed, maybe inside the garbage collector; the next event ends it."""
        self._freed.append((start, capture_stack()))

    def _end_freed(self) -> None:
        while self._freed:
            start, stack = self._freed.popleft()
            allocation = self._memory.get(start)
            if allocation is not None:
                self._memory.remove(allocation)
                self._end(allocation, stack)

    def _end(self, allocation: DeviceAllocation, stack: CallStack) -> None:
        allocation.freed_at = stack
        if self._graph_check is not None:
            self._graph_check.free(allocation)
        if self._stream_check is not None:
            clock = self._clocks.get_clock(allocation.stream)
            self._stream_check.free(allocation, clock)

    def knows(self, start: int) -> bool:
        """Return whether an address belongs to a living allocation."""
        with self._lock:
            self._end_freed()
            return self._memory.find(start) is not None

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        with self._lock:
            allocation = self._memory.find(tensor.untyped_storage().data_ptr())
            if allocation is not None:
                allocation.recorded_streams.add(stream)

    def note_addresses(self, table: torch.Tensor, numbers: torch.Tensor) -> None:
        """Remember the allocations whose addresses a table on the device holds."""
        if numbers.dtype not in (torch.int64, torch.uint64) or numbers.numel() > _MAX_TABLE:
            return
        with self._lock:
            found = {
                id(one): one
                for number in numbers.reshape(-1).tolist()
                if number > _SMALLEST_ADDRESS and (one := self._memory.find(number)) is not None
            }
            allocation = self._memory.find(table.untyped_storage().data_ptr())
            if found and allocation is not None:
                allocation.targets = tuple(found.values())

    # Launches

    def launch(
        self,
        name: str,
        uses: list[ArgumentUse],
        arguments: Any = (),
        is_known: bool = True,
        stream: Stream | None = None,
    ) -> None:
        """Check a launch, on a stream that is not the current one if it is given."""
        if self.is_paused:
            return
        with self._lock:
            self._end_freed()
            number = self._clocks.get_current_stream() if stream is None else stream
            launch = DeviceLaunch(name, number, *self._clocks.advance(number), capture_stack())
            self.counts.launches += 1
            self.counts.unknown += not is_known
            accesses = [make_access(launch, use, self._find(use.tensor)) for use in uses]
            if self._capture is not None and self._is_capturing:
                self.counts.captured += 1
                self._captured_parts[-1].accesses += accesses
                if self._graph_check is not None:
                    values = host_values.find_host_values(launch, arguments)
                    self._graph_check.add_launch(self._capture, accesses, values)
            elif self._graph_check is not None:
                self._graph_check.check_launch(accesses)
            if self._graph_check is not None:
                self._graph_check.confirm()
            if self._stream_check is not None:
                self._stream_check.add_launch(launch, accesses)

    def launch_operator(
        self,
        name: str,
        uses: list[ArgumentUse],
        args: tuple[Any, ...],
        options: dict[str, Any],
        result: Any,
    ) -> None:
        """Check an operator of torch; a copy from the host may bring addresses to the device."""
        if not uses:
            return
        self.launch(name, uses, (args, options))
        if not isinstance(result, torch.Tensor) or not result.is_cuda:
            return
        for source in args[:2]:
            if isinstance(source, torch.Tensor) and not source.is_cuda:
                self.note_addresses(result, source)

    def _find(self, tensor: torch.Tensor) -> DeviceAllocation:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        allocation = self._memory.find(start)
        if allocation is None:  # made before the tracer was there
            return self._allocate(start, storage.nbytes())
        if start + storage.nbytes() > allocation.end:
            allocation.size = start + storage.nbytes() - allocation.start
        if allocation.pool is not None:
            allocation.storage = allocation.storage or storage._cdata
        return allocation

    # Graphs

    def begin_capture(self, graph: Any, handle: object = None) -> None:
        """Begin a capture into the pool of a handle, or into one of its own."""
        with self._lock:
            self._captured_parts = [CapturedPart()]
            self._capturing_thread = threading.get_ident()
            pool = self._pools.get(handle) if handle else None
            if pool is None:
                pool = GraphPool()
            check = self._graph_check
            self._capture = (
                check.begin_capture(graph, pool)
                if check is not None
                else ReplayableGraph(lambda: graph, pool)
            )

    def end_capture(self, graph: Any) -> None:
        with self._lock:
            capture, self._capture = self._capture, None
            if capture is None:
                return
            self.counts.graphs += 1
            self._pools[graph.pool()] = capture.pool
            capture.pool.add_spans(capture)
            if self._graph_check is not None:
                self._graph_check.end_capture(capture)
            for part in self._captured_parts:
                part.forget_launches()
            self._replayed[graph] = join_parts(self._captured_parts)
            self._captured_parts = [CapturedPart()]

    def note_event(self, event: Event) -> None:
        """Note that an event was recorded: a graph that is captured records it at each replay.

        One that other code records later was part of the capture alone, as of a side stream.
        """
        with self._lock:
            if self._capture is not None and self._is_capturing:
                self._captured_events.add(event)
                self._captured_parts[-1].events.append(weakref.ref(event))
                self._captured_parts.append(CapturedPart())
            else:
                self._captured_events.discard(event)

    def reset(self, graph: Any) -> None:
        with self._lock:
            self._replayed.pop(graph, None)
            if self._graph_check is not None:
                self._graph_check.reset(graph)

    def replay(self, graph: Any) -> None:
        """Check a graph, and count its replay as one launch, or as one up to each event in it."""
        if self.is_paused:
            return
        with self._lock:
            self._end_freed()
            self.counts.replays += 1
            stack = capture_stack()
            if self._graph_check is not None:
                self._graph_check.replay(graph, stack)
            if self._stream_check is not None:
                stream = self._clocks.get_current_stream()
                for part in self._replayed.get(graph, []):
                    number, clock = self._clocks.advance(stream)
                    launch = DeviceLaunch("a replayed graph", stream, number, clock, stack)
                    self._stream_check.add_launch(launch, part.list_replayed(launch))
                    for event in part.list_events():
                        if event in self._captured_events:
                            event.clock = self._clocks.get_clock(stream)

    def finish(self) -> None:
        """Report what is still waiting to be confirmed."""
        if self._graph_check is not None:
            # Triton's compiler leaves cycles that hold a copy of the kernel's globals, and so
            # tensors that the program has dropped: they are freed here.
            gc.collect()
        with self._lock:
            self._end_freed()
            if self._graph_check is not None:
                self._graph_check.confirm()
