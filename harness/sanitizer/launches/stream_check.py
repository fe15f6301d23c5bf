"""`streams`: two streams that access the same bytes, one of them writing, need an order.

Each launch has its stream's vector clock: how many launches of every stream happened before. Two
launches are ordered if the later one's clock holds the earlier one. Invariant: an access that is
forgotten was ordered before a kept one that covers it, so a later access without an order to it has
none to the kept one either.

Two accesses that each may touch some elements alone (a table of slots) are not reported: they may
be of different elements. What torch's own sanitizer asks for the operators of ATen, by the address
of a tensor's first element, is asked here by ranges and for every kind of launch.

Memory that is freed goes back to the stream that it was allocated for, which may use it at once. If
another stream used it last, and neither waited nor `record_stream` named it, the next use is
unordered with the old one.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.sanitizer.device.streams import Clock
from harness.sanitizer.launches.call_stacks import format_stack, locate_launch
from harness.sanitizer.launches.device_launch import DeviceLaunch, format_stream
from harness.sanitizer.launches.device_memory import DeviceAllocation, FreedTooEarly, MemoryAccess
from harness.sanitizer.violations.exceptions import EarlyReuse, UnorderedAccess, Violation

_MAX_ACCESSES = 64  # remembered of an allocation
_MAX_FREED = 256
_SMALL_SIZE = 1 << 20  # the caching allocator has pools of smaller and of larger blocks
_ROUNDING = 512


class StreamCheck:
    def __init__(self, report: Callable[[Violation], None], may_reuse: Callable[..., bool]) -> None:
        self._report = report
        self._may_reuse = may_reuse
        self._freed: list[FreedTooEarly] = []
        self._reported: set[tuple[str, str, object, object]] = set()

    def add_launch(self, launch: DeviceLaunch, accesses: list[MemoryAccess]) -> None:
        for access in accesses:
            self._check_reuse(access)
            earlier = access.allocation.accesses
            for other in earlier:
                if _are_in_conflict(other, access) and not launch.is_after(other.launch):
                    self._report_conflict(other, access)
        for access in accesses:
            known = access.allocation.accesses
            known[:] = [other for other in known if not _replaces_access(access, other)]
            known.append(access)
            if len(known) > _MAX_ACCESSES:
                del known[0]

    def free(self, allocation: DeviceAllocation, clock: Clock) -> None:
        """`clock`: that of the allocation's own stream, with what the host has waited for."""
        pending = tuple(
            access
            for access in allocation.accesses
            if access.launch.stream != allocation.stream
            and access.launch.stream not in allocation.recorded_streams
            and clock.get(access.launch.stream, 0) < access.launch.count
        )
        allocation.accesses = []
        if pending and not allocation.in_graph_pool:
            self._freed.append(FreedTooEarly(allocation, pending))
            del self._freed[:-_MAX_FREED]

    def allocate(self, allocation: DeviceAllocation, clock: Clock) -> None:
        """Find freed memory that the allocator may hand out here, before its last use has ended."""
        if allocation.in_graph_pool or not self._freed:
            return
        stream = allocation.stream
        self._freed = [
            freed
            for freed in self._freed
            if freed.allocation.stream != stream
            or any(
                access.launch.count > clock.get(access.launch.stream, 0)
                for access in freed.accesses
            )
        ]
        for freed in self._freed:
            if freed.allocation.stream == stream and self._may_reuse(freed.allocation, allocation):
                allocation.early_reuse = freed
                self._freed.remove(freed)
                return

    def _check_reuse(self, access: MemoryAccess) -> None:
        freed = access.allocation.early_reuse
        if freed is None:
            return
        access.allocation.early_reuse = None
        for old in freed.accesses:
            if not access.launch.is_after(old.launch):
                self._report_reuse(freed.allocation, old, access)
                return

    # Reports

    def _is_new(self, first: MemoryAccess, second: MemoryAccess) -> bool:
        key = (
            first.launch.name,
            second.launch.name,
            first.launch.stack[:1],
            second.launch.stack[:1],
        )
        is_new = key not in self._reported
        self._reported.add(key)
        return is_new

    def _report_conflict(self, first: MemoryAccess, second: MemoryAccess) -> None:
        if not self._is_new(first, second):
            return
        name = second.launch.name
        self._report(
            UnorderedAccess(
                f"{name} {second.verb} {second.argument} on stream "
                f"{format_stream(second.launch.stream)}, which {first.launch.name} {first.verb} on "
                f"stream {format_stream(first.launch.stream)}, without an order",
                locate_launch(name, second.launch.stack),
                (
                    first.describe("launched at"),
                    second.describe("launched at"),
                    f"allocated at {format_stack(second.allocation.allocated_at)}",
                    "an event that the second stream waits for would order them",
                ),
            )
        )

    def _report_reuse(
        self, allocation: DeviceAllocation, first: MemoryAccess, second: MemoryAccess
    ) -> None:
        if not self._is_new(first, second):
            return
        name = first.launch.name
        self._report(
            EarlyReuse(
                f"{name} {first.verb} {first.argument} on stream "
                f"{format_stream(first.launch.stream)}, and stream "
                f"{format_stream(allocation.stream)} gets its memory again before that has ended",
                locate_launch(name, first.launch.stack),
                (
                    first.describe("launched at"),
                    f"allocated at {format_stack(allocation.allocated_at)}",
                    f"freed at {format_stack(allocation.freed_at or ())}",
                    second.describe("launched at"),
                    f"its memory is allocated at {format_stack(second.allocation.allocated_at)}",
                    "record_stream, or an event that the first stream's next launch waits for, "
                    "would keep it",
                ),
            )
        )


def _are_in_conflict(first: MemoryAccess, second: MemoryAccess) -> bool:
    return (
        (first.writes or second.writes)
        and not (first.partial and second.partial)
        and first.start < second.end
        and second.start < first.end
    )


def _replaces_access(new: MemoryAccess, old: MemoryAccess) -> bool:
    """Return whether an access without an order to the old one has none to the new one either."""
    return (
        (new.writes or (not old.writes and new.launch.stream == old.launch.stream))
        and (old.partial or not new.partial)
        and new.start <= old.start
        and old.end <= new.end
        and new.launch.is_after(old.launch)
    )


def has_fitting_size(freed: DeviceAllocation, wanted: DeviceAllocation) -> bool:
    """Return whether the caching allocator may take a freed block for an allocation."""
    old, new = (-(-one.size // _ROUNDING) for one in (freed, wanted))
    return new <= old and (freed.size <= _SMALL_SIZE) == (wanted.size <= _SMALL_SIZE)


def has_same_memory(freed: DeviceAllocation, wanted: DeviceAllocation) -> bool:
    return freed.start < wanted.end and wanted.start < freed.end
