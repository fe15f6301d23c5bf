"""Asks who wrote last into memory of a graph's pool that is read.

Invariant: a tensor of a pool holds what the graph that allocated it computed in its last replay, or
what was written into it since. It holds something else if another graph of the pool, whose own
tensor has some of the same bytes, was replayed since. Example: one pool, and two captures that each
allocate and free a temporary tensor in front of their result:

    first.replay(); second.replay(); read(second_result)       right
    second.replay(); first.replay(); read(second_result)       overwritten by first's temporary

An update in place (`add_`) reads first and then writes. A write into some elements makes those
right, and no others. Reads through a tensor without ownership (`weak_ref_tensor`) are not checked,
since it may stand for any that had its bytes; neither are launches that access some elements alone,
and what such a one writes counts as all between its tensor's first and last byte.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.sanitizer.launches.byte_spans import intersect_spans, subtract_spans
from harness.sanitizer.launches.call_stacks import CallStack, format_stack, locate_launch
from harness.sanitizer.launches.device_memory import MemoryAccess, ReplayableGraph
from harness.sanitizer.violations.exceptions import OverwrittenPoolMemory, Violation


class PoolCheck:
    def __init__(self, report: Callable[[Violation], None]) -> None:
        self._report = report
        self._reported: set[tuple[object, ...]] = set()

    def check_launch(self, accesses: list[MemoryAccess]) -> None:
        """Check a launch outside of captures."""
        for access in accesses:
            if access.allocation.pool is not None and access.reads:
                self._check_read(access, access.launch.stack)
        for access in accesses:
            if access.allocation.pool is not None and access.writes:
                access.allocation.pool.note_write(access)

    def check_replay(self, captured: ReplayableGraph, stack: CallStack) -> None:
        for access in captured.pool_reads:
            self._check_read(access, stack, " of a replayed graph")
        outside = [one for one in captured.accesses if one.allocation.pool is not None]
        for access in outside:
            if access.reads:
                self._check_read(access, stack, " of a replayed graph")
        captured.pool.note_replay(captured)
        for access in (*captured.pool_writes, *outside):
            if access.writes and access.allocation.capture is not captured:
                access.allocation.note_write(access, captured.replayed_at)

    def _check_read(self, access: MemoryAccess, stack: CallStack, suffix: str = "") -> None:
        allocation = access.allocation
        pool, written_at = allocation.pool, allocation.last_written_at
        if pool is None or access.is_alias or pool.written_at <= written_at:
            return
        if (spans := access.list_spans()) is None:
            return
        for moment, write in pool.iterate_writes_after(written_at):
            if write.allocation is allocation or write.end <= access.start:
                continue
            overwritten = intersect_spans(spans, write.list_spans() or [])
            written_since = allocation.list_spans_written_after(moment)
            if overwritten and subtract_spans(overwritten, written_since):
                self._report_read(access, write, stack, suffix)
                return

    def _report_read(
        self, access: MemoryAccess, write: MemoryAccess, stack: CallStack, suffix: str
    ) -> None:
        name = access.launch.name + suffix
        key = name, access.launch.stack[:1], write.launch.name, write.launch.stack[:1]
        if key in self._reported:
            return
        self._reported.add(key)
        is_replayed = write.allocation.capture is not None
        writer = f"{write.launch.name}{' of another replayed graph' if is_replayed else ''}"
        place = "captured at" if is_replayed else "launched at"
        self._report(
            OverwrittenPoolMemory(
                f"{name} reads {access.argument} in a graph's pool, where {writer} has written "
                f"{write.argument} since",
                locate_launch(name, stack),
                (
                    f"{access.argument} {access.description}; read at {format_stack(stack)}",
                    f"allocated at {format_stack(access.allocation.allocated_at)}",
                    f"{write.argument} {write.description}; {place} "
                    f"{format_stack(write.launch.stack)}",
                    "graphs of one pool share its memory: read a result in front of the next "
                    "replay, or let its graph compute it again",
                ),
            )
        )
