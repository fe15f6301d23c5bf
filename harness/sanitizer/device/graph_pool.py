"""The memory of captured graphs: later tensors of a capture get the bytes of freed ones.

Invariant: a byte of a pool belongs to at most one living tensor, and to the pool for as long as a
graph of the pool is there. So a replay finds its addresses, whatever was freed since. A graph of
another pool has no such right: it uses `BorrowedBytes`, which know when they went to a later tensor
or lost the graph that allocated them. A layer's memory serves the next layer, as on a GPU: of

    for layer in layers:
        x = layer(x)  # 1 GB each

the pool holds 2 GB, however many layers there are. Graphs with one handle share a pool.

Sizes are rounded up to 512 bytes, and small tensors share segments of 2 MiB, as torch does.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.sanitizer.device import memory

_GRANULE = 512  # bytes
_LARGEST_SMALL = 1 << 20
_SMALL_SEGMENT = 1 << 21
_numbers = itertools.count(1)
_thread = threading.local()
_pools: weakref.WeakValueDictionary[object, MemoryPool] = weakref.WeakValueDictionary()


@dataclass(slots=True)
class _FreeBlock:
    """Free bytes of a segment, from an offset on."""

    segment: _Segment
    offset: int
    size: int
    is_used: bool  # some of it belonged to a tensor before

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(eq=False, slots=True, weakref_slot=True)
class BorrowedBytes:
    """Bytes of a pool that a graph of another pool uses."""

    start: int
    end: int
    owner: Callable[[], object]  # the capture that allocated them, while it is there
    is_given_on: bool = False  # to a later tensor

    @property
    def is_kept(self) -> bool:
        return not self.is_given_on and self.owner() is not None


@dataclass(slots=True)
class _TakenBytes:
    """The bytes of a living tensor."""

    view: weakref.ref[memoryview]  # it calls when the tensor is freed
    start: int
    end: int
    owner: weakref.ref[Any]


class _Segment:
    """Bytes that a pool has reserved on a device; they take no memory before they are written."""

    def __init__(self, size: int, index: int) -> None:
        memory.LEDGER.admit(size, index)
        self.index = index
        self.mapping = memory.map_bytes(size)
        self.tensor = torch.frombuffer(self.mapping, dtype=torch.uint8)
        self.start = self.tensor.data_ptr()
        self.end = self.start + size
        memory.LEDGER.add_segment(self.tensor, index)

    def clear(self, offset: int, size: int) -> None:
        """Fill bytes with zeros; whole pages take no memory afterwards."""
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first >= last:
            self.tensor[offset : offset + size].zero_()
            return
        self.tensor[offset:first].zero_()
        self.mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
        self.tensor[last : offset + size].zero_()


class MemoryPool:
    """Gives bytes to new tensors of a capture, those of freed tensors first."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._free: list[_FreeBlock] = []
        self._returned: deque[_FreeBlock] = deque()  # by the garbage collector, at any time
        self._taken: dict[int, _TakenBytes] = {}
        self._borrowed: weakref.WeakSet[BorrowedBytes] = weakref.WeakSet()
        # Called with what gives bytes zeros again: a dry run's replays begin with zeros, too.
        self.observe_reuse: Callable[[Callable[[], None]], None] | None = None

    def take(self, nbytes: int, index: int, owner: object) -> torch.Tensor:
        """Return bytes that go back to the pool when the last tensor over them is freed.

        The owner is the capture that allocates them.
        """
        self._add_returned()
        size = max(1, -(-nbytes // _GRANULE)) * _GRANULE
        fitting = [one for one in self._free if one.size >= size and one.segment.index == index]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
            self._free.remove(block)
        else:
            block = self._reserve(size, index)
        if block.size > size:
            rest = _FreeBlock(block.segment, block.offset + size, block.size - size, block.is_used)
            self._free.append(rest)
            block.size = size
        if block.is_used and memory.begins_with_zeros():
            clear = partial(block.segment.clear, block.offset, size)
            clear()
            if self.observe_reuse is not None:
                self.observe_reuse(clear)
        block.is_used = True
        view = memoryview(block.segment.mapping)[block.offset : block.offset + max(1, nbytes)]
        number = next(_numbers)
        give_back = partial(_give_back, self._taken, self._returned, number, block)
        start = block.segment.start + block.offset
        end = start + size
        for borrowed in self._borrowed:
            if borrowed.start < end and start < borrowed.end:
                borrowed.is_given_on = True
        self._taken[number] = _TakenBytes(
            weakref.ref(view, give_back), start, end, weakref.ref(owner)
        )
        return torch.frombuffer(view, dtype=torch.uint8)[:nbytes]

    def borrow(self, start: int, nbytes: int) -> BorrowedBytes:
        """Watch bytes for a graph of another pool."""
        owners = (one.owner for one in list(self._taken.values()) if one.start <= start < one.end)
        borrowed = BorrowedBytes(start, start + nbytes, next(owners, lambda: None))
        self._borrowed.add(borrowed)
        return borrowed

    def list_freed_storages(self) -> list[torch.UntypedStorage]:
        """Return the bytes of freed tensors, which a replay of the pool's graphs still uses."""
        self._add_returned()
        return [
            torch.frombuffer(
                memoryview(one.segment.mapping)[one.offset : one.end], dtype=torch.uint8
            ).untyped_storage()
            for one in self._free
            if one.is_used
        ]

    def owns(self, address: int) -> bool:
        return any(segment.start <= address < segment.end for segment in self._segments)

    @property
    def size(self) -> int:
        """The bytes that the pool has reserved."""
        return sum(segment.end - segment.start for segment in self._segments)

    def _reserve(self, size: int, index: int) -> _FreeBlock:
        whole = max(size, _SMALL_SEGMENT if size <= _LARGEST_SMALL else size)
        segment = _Segment(whole, index)
        self._segments.append(segment)
        return _FreeBlock(segment, 0, whole, is_used=False)

    def _add_returned(self) -> None:
        """Add the blocks of freed tensors to the free ones, each joined with its neighbours."""
        while self._returned:
            block = self._returned.popleft()
            for other in [one for one in self._free if one.segment is block.segment]:
                if other.end == block.offset or block.end == other.offset:
                    self._free.remove(other)
                    first = min(other.offset, block.offset)
                    size = other.size + block.size
                    block = _FreeBlock(block.segment, first, size, other.is_used or block.is_used)
            self._free.append(block)


def _give_back(
    taken: dict[int, _TakenBytes],
    returned: deque[_FreeBlock],
    number: int,
    block: _FreeBlock,
    _: object,
) -> None:
    taken.pop(number, None)
    returned.append(block)


def make_handle() -> tuple[int, int]:
    return 0, next(_numbers)


def find_pool(handle: object) -> MemoryPool:
    """Find the pool of a handle, or make it; it is there as long as a graph or tensor holds it."""
    pool = _pools.get(handle)
    if pool is None:
        pool = _pools[handle] = MemoryPool()
    return pool


def find_owner(address: int) -> MemoryPool | None:
    """Find the living pool that an address belongs to."""
    return next((pool for pool in list(_pools.values()) if pool.owns(address)), None)


def get_replayed() -> MemoryPool | None:
    """Return the pool of the graph that this thread replays, if it does."""
    return getattr(_thread, "replayed", None)


@contextlib.contextmanager
def note_replay(pool: MemoryPool) -> Iterator[None]:
    before, _thread.replayed = get_replayed(), pool
    try:
        yield
    finally:
        _thread.replayed = before
