"""Storages that kernels may reach through loaded addresses: all whose `data_ptr()` was requested.

Tables of addresses are made from `data_ptr()`, so a storage is registered when Python requests an
address in it, and known until it is freed. Each storage has its own ends: two pools side by side in
one segment of PyTorch's allocator are two. Imports torch alone, since a server makes its tables
before it launches a Triton kernel.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.sanitizer.violations.named_memory import NamedMemory

MAX_STORAGES = 4096  # rows of the table; the first one is empty
_MIN_CLEANUP_SIZE = 256


@dataclass(frozen=True, slots=True)
class DeviceStorage(NamedMemory):
    weak_reference: StorageWeakRef = field(kw_only=True)

    @property
    def size(self) -> int:
        return self.end - self.start


class StorageRegistry:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._storages: dict[int, DeviceStorage] = {}
        self._lock = threading.Lock()
        self._ignoring = threading.local()
        self._cleanup_size = _MIN_CLEANUP_SIZE  # at this size, freed storages are dropped
        self.change_count = 0

    def register(self, tensor: Any, name: str = "a tensor whose address it loaded") -> None:
        """Register a tensor's storage as one that an address may lead to."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        known = self._storages.get(start)
        if not size or (known and known.size == size and not known.weak_reference.expired()):
            return
        kind = str(tensor.dtype).removeprefix("torch.")
        ref = StorageWeakRef(storage)
        itemsize, shape = tensor.element_size(), tuple(tensor.shape)
        registered = DeviceStorage(
            name, start, start + size, itemsize, shape, kind, weak_reference=ref
        )
        with self._lock:
            if len(self._starts) >= self._cleanup_size:
                self._remove(
                    [each for each in self._storages.values() if each.weak_reference.expired()]
                )
                self._cleanup_size = min(
                    MAX_STORAGES - 1, max(_MIN_CLEANUP_SIZE, 2 * len(self._starts))
                )
            if len(self._starts) == MAX_STORAGES - 1:
                return
            self._remove(list(self._iter_overlapping(registered)))  # these were freed
            bisect.insort(self._starts, start)
            self._storages[start] = registered
            self.change_count += 1

    def find_starting_at(self, start: int) -> DeviceStorage | None:
        """Find the storage, unless it was freed."""
        storage = self._storages.get(start)
        return None if storage is None or storage.weak_reference.expired() else storage

    def find_containing(self, address: int) -> DeviceStorage | None:
        """Find the storage that an address lies in, unless it was freed."""
        with self._lock:
            position = bisect.bisect_right(self._starts, address) - 1
            storage = self.find_starting_at(self._starts[position]) if position >= 0 else None
        return storage if storage is not None and address < storage.end else None

    def to_table(self) -> Any:
        """Return an empty row, then sorted starts and ends; the rest is past every address."""
        rows = np.full((MAX_STORAGES, 2), np.iinfo(np.int64).max, dtype=np.int64)
        rows[0] = 0
        with self._lock:
            count = len(self._starts)
            rows[1 : count + 1, 0] = self._starts
            rows[1 : count + 1, 1] = [self._storages[start].end for start in self._starts]
        return rows

    def observe_address_request(self, tensor: Any) -> None:
        if tensor.is_cuda and not getattr(self._ignoring, "now", False):
            with suppress(RuntimeError):  # a tensor without a storage
                self.register(tensor)

    @contextmanager
    def ignore_address_requests(self) -> Iterator[None]:
        """Ignore this thread's requests, which only pass addresses to a launch."""
        self._ignoring.now = True
        try:
            yield
        finally:
            self._ignoring.now = False

    def _iter_overlapping(self, registered: DeviceStorage) -> Iterator[DeviceStorage]:
        first = bisect.bisect_left(self._starts, registered.start)
        if first and self._storages[self._starts[first - 1]].end > registered.start:
            first -= 1
        for start in self._starts[first:]:
            if start >= registered.end:
                return
            yield self._storages[start]

    def _remove(self, storages: list[DeviceStorage]) -> None:
        for storage in storages:
            self._starts.remove(storage.start)
            del self._storages[storage.start]


STORAGE_REGISTRY = StorageRegistry()


def track_data_ptr() -> Any:
    """Observe `data_ptr()` from here on; return the original, or None if it was observed."""
    original = torch.Tensor.data_ptr
    if getattr(original, "by_unfix", False):
        return None

    @functools.wraps(original)
    def data_ptr(tensor: Any) -> int:
        address = original(tensor)
        STORAGE_REGISTRY.observe_address_request(tensor)
        return address  # type: ignore[no-any-return]

    data_ptr.by_unfix = True  # type: ignore[attr-defined]
    torch.Tensor.data_ptr = data_ptr
    return original
