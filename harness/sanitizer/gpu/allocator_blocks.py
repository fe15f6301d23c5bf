"""The blocks of PyTorch's allocator, for a pointer whose tensor Python has not seen.

A list of all blocks takes milliseconds, so it is read again only if memory was allocated or freed
since. Example: jiterator allocates its result itself; a pointer to it lies in a block of which 160
bytes were requested. An allocator that keeps no such list (`cudaMallocAsync`, one of the program's
own) knows no memory.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch

_COUNTERS = ("allocation.all.allocated", "allocation.all.freed")
_Blocks = tuple[tuple[int, ...], tuple[int, ...]]  # where they start, and the bytes requested


class AllocatorBlocks:
    def __init__(self) -> None:
        # Replaced as a whole: another thread may look for an address meanwhile.
        self._known: tuple[tuple[Any, ...], _Blocks] = (), ((), ())

    def find_containing(self, address: int) -> tuple[int, int] | None:
        """Return the start of the memory that an address lies in, and the bytes requested."""
        try:
            starts, sizes = self._read()
        except (RuntimeError, LookupError):  # this allocator does not say
            return None
        place = bisect_right(starts, address) - 1
        if place < 0 or address >= starts[place] + sizes[place]:
            return None
        return starts[place], sizes[place]

    def _read(self) -> _Blocks:
        devices = range(torch.cuda.device_count())
        state = tuple(
            torch.cuda.memory_stats(device).get(name) for device in devices for name in _COUNTERS
        )
        known_state, blocks = self._known
        if state == known_state:
            return blocks
        found = sorted(
            (block["address"], block["requested_size"])
            for segment in torch.cuda.memory_snapshot()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        )
        blocks = tuple(start for start, _ in found), tuple(size for _, size in found)
        self._known = state, blocks
        return blocks


ALLOCATOR_BLOCKS = AllocatorBlocks()
