"""The blocks of PyTorch's allocator, for a pointer whose tensor Python has not seen.

A list of all blocks takes milliseconds, so it is read again only if memory was allocated or freed
since. Example: jiterator allocates its result itself; a pointer to it lies in a block of which 160
bytes were requested.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import torch

_COUNTERS = ("allocation.all.allocated", "allocation.all.freed")


@dataclass(slots=True)
class AllocatorBlocks:
    _state: tuple[Any, ...] = ()
    _starts: list[int] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)

    def find_containing(self, address: int) -> tuple[int, int] | None:
        """Return the start of the memory that an address lies in, and the bytes requested."""
        self._read()
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._starts[place] + self._sizes[place]:
            return None
        return self._starts[place], self._sizes[place]

    def _read(self) -> None:
        devices = range(torch.cuda.device_count())
        state = tuple(
            torch.cuda.memory_stats(one).get(name) for one in devices for name in _COUNTERS
        )
        if state == self._state:
            return
        found = sorted(
            (block["address"], block["requested_size"])
            for segment in torch.cuda.memory_snapshot()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        )
        self._state = state
        self._starts, self._sizes = [start for start, _ in found], [size for _, size in found]


ALLOCATOR_BLOCKS = AllocatorBlocks()
