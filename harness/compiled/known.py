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

MOST = 4096  # storages; a table's first row is none
_FEW = 256


@dataclass(frozen=True, slots=True)
class Storage:
    start: int
    size: int
    name: str
    shape: tuple[int, ...]
    kind: str
    itemsize: int
    alive: StorageWeakRef

    @property
    def end(self) -> int:
        return self.start + self.size


class Known:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._storages: dict[int, Storage] = {}
        self._lock = threading.Lock()
        self._deaf = threading.local()
        self._many = _FEW  # so many, and who is gone is looked for
        self.changes = 0

    def meet(self, tensor: Any, name: str = "a tensor whose address it loaded") -> None:
        """Its storage is one that an address may lead to."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        known = self._storages.get(start)
        if not size or (known and known.size == size and not known.alive.expired()):
            return
        kind = str(tensor.dtype).removeprefix("torch.")
        ref = StorageWeakRef(storage)
        met = Storage(start, size, name, tuple(tensor.shape), kind, tensor.element_size(), ref)
        with self._lock:
            if len(self._starts) >= self._many:
                self._drop([one for one in self._storages.values() if one.alive.expired()])
                self._many = min(MOST - 1, max(_FEW, 2 * len(self._starts)))
            if len(self._starts) == MOST - 1:
                return
            self._drop(list(self._overlapping(met)))  # what lay there was freed
            bisect.insort(self._starts, start)
            self._storages[start] = met
            self.changes += 1

    def starting_at(self, start: int) -> Storage | None:
        """The storage, if it is still there."""
        found = self._storages.get(start)
        return None if found is None or found.alive.expired() else found

    def holding(self, address: int) -> Storage | None:
        """The storage that it lies in, if that is still there."""
        with self._lock:
            place = bisect.bisect_right(self._starts, address) - 1
            found = self.starting_at(self._starts[place]) if place >= 0 else None
        return found if found is not None and address < found.end else None

    def table(self) -> Any:
        """Starts and ends in order, behind a row of none, and filled up with what is never met."""
        rows = np.full((MOST, 2), np.iinfo(np.int64).max, dtype=np.int64)
        rows[0] = 0
        with self._lock:
            many = len(self._starts)
            rows[1 : many + 1, 0] = self._starts
            rows[1 : many + 1, 1] = [self._storages[start].end for start in self._starts]
        return rows

    def hears(self, tensor: Any) -> None:
        if tensor.is_cuda and not getattr(self._deaf, "now", False):
            with suppress(RuntimeError):  # of a tensor that has no storage
                self.meet(tensor)

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Meanwhile this thread asks for addresses only to launch a kernel with them."""
        self._deaf.now = True
        try:
            yield
        finally:
            self._deaf.now = False

    def _overlapping(self, met: Storage) -> Iterator[Storage]:
        place = bisect.bisect_left(self._starts, met.start)
        if place and self._storages[self._starts[place - 1]].end > met.start:
            place -= 1
        for start in self._starts[place:]:
            if start >= met.end:
                return
            yield self._storages[start]

    def _drop(self, gone: list[Storage]) -> None:
        for one in gone:
            self._starts.remove(one.start)
            del self._storages[one.start]


KNOWN = Known()


def follow() -> Any:
    """Hear of each address that is asked for, from here on; what was there before, if this began
    it."""
    plain = torch.Tensor.data_ptr
    if getattr(plain, "by_unfix", False):
        return None

    @functools.wraps(plain)
    def data_ptr(tensor: Any) -> int:
        address = plain(tensor)
        KNOWN.hears(tensor)
        return address  # type: ignore[no-any-return]

    data_ptr.by_unfix = True  # type: ignore[attr-defined]
    torch.Tensor.data_ptr = data_ptr
    return plain
