"""Memory that kernels reach by addresses which they load: what Python asked the address of.

Tables of addresses are made of `data_ptr()`. So each storage that was asked for one is known until
it is freed, with its own ends: two pools side by side in one segment of PyTorch's allocator are
two.
Loads torch alone, since a server makes its tables before it launches a kernel of Triton's.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

MAX_STORAGES = 4096  # storages; a table's first row is none
_MIN_CLEANUP_SIZE = 256


@dataclass(frozen=True, slots=True)
class DeviceStorage:
    start: int
    size: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    weak_reference: StorageWeakRef

    @property
    def end(self) -> int:
        return self.start + self.size


class StorageRegistry:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._storages: dict[int, DeviceStorage] = {}
        self._lock = threading.Lock()
        self._ignoring = threading.local()
        self._cleanup_size = _MIN_CLEANUP_SIZE  # so many, and who is gone is looked for
        self.change_count = 0

    def register(self, tensor: Any, name: str = "a tensor whose address it loaded") -> None:
        """Its storage is one that an address may lead to."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        known = self._storages.get(start)
        if not size or (known and known.size == size and not known.weak_reference.expired()):
            return
        kind = str(tensor.dtype).removeprefix("torch.")
        ref = StorageWeakRef(storage)
        met = DeviceStorage(
            start, size, name, tuple(tensor.shape), kind, tensor.element_size(), ref
        )
        with self._lock:
            if len(self._starts) >= self._cleanup_size:
                self._remove(
                    [one for one in self._storages.values() if one.weak_reference.expired()]
                )
                self._cleanup_size = min(
                    MAX_STORAGES - 1, max(_MIN_CLEANUP_SIZE, 2 * len(self._starts))
                )
            if len(self._starts) == MAX_STORAGES - 1:
                return
            self._remove(list(self._iter_overlapping(met)))  # what lay there was freed
            bisect.insort(self._starts, start)
            self._storages[start] = met
            self.change_count += 1

    def find_starting_at(self, start: int) -> DeviceStorage | None:
        """The storage, if it is still there."""
        found = self._storages.get(start)
        return None if found is None or found.weak_reference.expired() else found

    def find_containing(self, address: int) -> DeviceStorage | None:
        """The storage that it lies in, if that is still there."""
        with self._lock:
            place = bisect.bisect_right(self._starts, address) - 1
            found = self.find_starting_at(self._starts[place]) if place >= 0 else None
        return found if found is not None and address < found.end else None

    def to_table(self) -> Any:
        """Starts and ends in order, behind a row of none, and filled up with what is never met."""
        rows = np.full((MAX_STORAGES, 2), np.iinfo(np.int64).max, dtype=np.int64)
        rows[0] = 0
        with self._lock:
            many = len(self._starts)
            rows[1 : many + 1, 0] = self._starts
            rows[1 : many + 1, 1] = [self._storages[start].end for start in self._starts]
        return rows

    def observe_address_request(self, tensor: Any) -> None:
        if tensor.is_cuda and not getattr(self._ignoring, "now", False):
            with suppress(RuntimeError):  # of a tensor that has no storage
                self.register(tensor)

    @contextmanager
    def ignore_address_requests(self) -> Iterator[None]:
        """Meanwhile this thread asks for addresses only to launch a kernel with them."""
        self._ignoring.now = True
        try:
            yield
        finally:
            self._ignoring.now = False

    def _iter_overlapping(self, registered: DeviceStorage) -> Iterator[DeviceStorage]:
        place = bisect.bisect_left(self._starts, registered.start)
        if place and self._storages[self._starts[place - 1]].end > registered.start:
            place -= 1
        for start in self._starts[place:]:
            if start >= registered.end:
                return
            yield self._storages[start]

    def _remove(self, storages: list[DeviceStorage]) -> None:
        for one in storages:
            self._starts.remove(one.start)
            del self._storages[one.start]


STORAGE_REGISTRY = StorageRegistry()


def track_data_ptr() -> Any:
    """Hear of each address that is asked for, from here on; what was there before, if this began
    it."""
    plain = torch.Tensor.data_ptr
    if getattr(plain, "by_unfix", False):
        return None

    @functools.wraps(plain)
    def data_ptr(tensor: Any) -> int:
        address = plain(tensor)
        STORAGE_REGISTRY.observe_address_request(tensor)
        return address  # type: ignore[no-any-return]

    data_ptr.by_unfix = True  # type: ignore[attr-defined]
    torch.Tensor.data_ptr = data_ptr
    return plain
