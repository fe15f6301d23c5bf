"""The living allocations by their address.

Invariant: an address belongs to one living allocation at most. An allocation that begins inside an
older one means that the older one was freed.
"""

from __future__ import annotations

import bisect

from harness.sanitizer.launches.device_memory import DeviceAllocation


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
