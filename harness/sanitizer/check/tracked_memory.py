"""The memory of a checked session: storages, their uninitialized bytes, their access rules.

Uses torch and numpy, not Triton. A storage has a shadow of one byte for each of its bytes, mapped
lazily: the shadow of a virtual tensor takes memory for the touched pages alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.sanitizer.device.installation import is_installed
from harness.sanitizer.device.memory import map_zero_bytes
from harness.sanitizer.gpu.pointer_arguments import compute_reach
from harness.sanitizer.violations.named_memory import NamedMemory

Array = Any
Index = Any


def is_in_host_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's bytes are this machine's: a virtual GPU's are."""
    return tensor.device.type == "cpu" or (tensor.is_cuda and is_installed())


ProgramId = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TensorSpan(NamedMemory):
    """The bytes from a tensor's first element to its last: for a view, part of a storage."""

    storage: TrackedStorage = field(kw_only=True)


@dataclass(slots=True, eq=False)
class AccessRule:
    """Which elements of a tensor each program may write and read; None allows all."""

    tensor: torch.Tensor
    write: Callable[[ProgramId], Index] | None
    read: Callable[[ProgramId], Index] | None
    masks: dict[tuple[str, ProgramId], Array] = field(default_factory=dict)

    def get_rule(self, access: str) -> Callable[[ProgramId], Index] | None:
        return self.write if access == "write" else self.read

    def get_allowed_bytes(
        self, access: str, program: ProgramId, storage: TrackedStorage
    ) -> Array | None:
        """Return a mask of the storage's bytes that a program may access, or None for all."""
        rule = self.get_rule(access)
        if rule is None:
            return None
        if (access, program) not in self.masks:
            self.compute_masks(access, (program,), storage)
        return self.masks[access, program]

    def compute_masks(
        self, access: str, programs: Iterable[ProgramId], storage: TrackedStorage
    ) -> None:
        """Compute the masks of programs at once: each by itself would take as long as a launch."""
        rule = self.get_rule(access)
        new = [program for program in programs if (access, program) not in self.masks]
        if rule is None or not new:
            return
        rows = self._compute_mask_rows(storage, [(rule(program),) for program in new])
        self.masks.update(zip(((access, program) for program in new), rows.numpy(), strict=True))

    def compute_union_mask(self, storage: TrackedStorage, indices: Iterable[Index]) -> torch.Tensor:
        """Compute a mask of the storage's bytes: 0 for the tensor's elements without an index."""
        return self._compute_mask_rows(storage, [indices])[0]

    def is_broken(
        self, access: str, program: ProgramId, storage: TrackedStorage, offset: int, size: int
    ) -> bool:
        allowed = self.get_allowed_bytes(access, program, storage)
        end = min(offset + size, storage.size) - 1
        return allowed is not None and not (allowed[offset] and allowed[end])

    def _compute_mask_rows(
        self, storage: TrackedStorage, index_sets: Sequence[Iterable[Index]]
    ) -> torch.Tensor:
        rows = torch.ones((len(index_sets), storage.size), dtype=torch.uint8)
        own = view_shadow_bytes(rows, self.tensor)
        own.zero_()
        for mask, indices in zip(own.numpy(), index_sets, strict=True):
            for index in indices:
                if index is not None:
                    mask[index] = 1
        return rows


def view_shadow_bytes(shadow: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """View a storage's byte shadow in the shape of one of its tensors, element bytes last.

    A matrix with one shadow a row becomes one such view for each row, along the first axis.
    """
    size = tensor.element_size()
    return torch.as_strided(
        shadow,
        (*shadow.shape[:-1], *tensor.shape, size),
        (*shadow.stride()[:-1], *(stride * size for stride in tensor.stride()), 1),
        tensor.storage_offset() * size,
    )


class TrackedStorage:
    """One torch storage, for as long as it lives."""

    def __init__(self, storage: torch.UntypedStorage, name: str) -> None:
        self.name = name
        self.start = storage.data_ptr()
        self.size = storage.nbytes()
        self.end = self.start + self.size
        self.access_rules: list[AccessRule] = []
        self.uninitialized: torch.Tensor | None = None  # a byte for each byte: 1 if it is so
        self._alive = StorageWeakRef(storage)

    @property
    def is_freed(self) -> bool:
        return bool(self._alive.expired())

    def mark_uninitialized(self) -> None:
        self.uninitialized = map_zero_bytes(self.size)
        self.uninitialized.fill_(1)

    def mark_initialized(self) -> None:
        self.uninitialized = None

    def mark_tensor_uninitialized(self, tensor: torch.Tensor) -> None:
        if self.uninitialized is None:
            self.uninitialized = map_zero_bytes(self.size)
        view_shadow_bytes(self.uninitialized, tensor).fill_(1)


class MemoryTracker:
    """All storages that a session has seen."""

    is_of_device = False  # where tensors of the CPU are none that a kernel reaches

    def __init__(self) -> None:
        self._storages: dict[int, TrackedStorage] = {}
        self._freed_storages: list[TrackedStorage] = []

    def clear(self) -> None:
        self._storages.clear()
        self._freed_storages.clear()

    def track_storage(self, tensor: torch.Tensor, name: str = "a tensor") -> TrackedStorage:
        return self.track(tensor.untyped_storage(), name)

    def track(self, untyped: torch.UntypedStorage, name: str) -> TrackedStorage:
        storage = self._storages.get(untyped.data_ptr())
        if storage is not None and not storage.is_freed and storage.size == untyped.nbytes():
            return storage
        return self._add_storage(untyped, name)

    def _add_storage(self, untyped: torch.UntypedStorage, name: str) -> TrackedStorage:
        new = TrackedStorage(untyped, name)
        old = self._storages.get(new.start)
        if old is not None:
            self._freed_storages.append(old)
        self._freed_storages = [
            freed
            for freed in self._freed_storages
            if freed.end <= new.start or freed.start >= new.end
        ]
        if new.size:
            self._storages[new.start] = new
        return new

    def find_storage(self, tensor: torch.Tensor) -> TrackedStorage | None:
        """Find the tensor's storage, if the session tracks it.

        Graphs of one pool share bytes: a smaller storage that begins where the tensor's does is
        another's.
        """
        untyped = tensor.untyped_storage()
        storage = self._storages.get(untyped.data_ptr())
        if storage is None or storage.is_freed or storage.size < untyped.nbytes():
            return None
        return storage

    def mark_written(self, tensor: torch.Tensor) -> None:
        """Mark the elements of a tensor as initialized."""
        if not is_in_host_memory(tensor):
            return
        storage = self.find_storage(tensor)
        if storage is not None and storage.uninitialized is not None and tensor.numel():
            with torch._C._DisableTorchDispatch():
                view_shadow_bytes(storage.uninitialized, tensor).fill_(0)

    def make_span(self, tensor: torch.Tensor, name: str, itemsize: int) -> TensorSpan:
        storage, start = self.track_storage(tensor, name), tensor.data_ptr()
        end, dtype = start + compute_reach(tensor), str(tensor.dtype).removeprefix("torch.")
        return TensorSpan(name, start, end, itemsize, tuple(tensor.shape), dtype, storage=storage)

    def iterate_living(self) -> Iterator[TrackedStorage]:
        return (storage for storage in self._storages.values() if not storage.is_freed)

    def find_freed(self, address: int) -> TrackedStorage | None:
        freed = (storage for storage in self._storages.values() if storage.is_freed)
        return _find_containing(address, itertools.chain(freed, self._freed_storages))

    def find_living(self, address: int) -> TrackedStorage | None:
        return _find_containing(address, self.iterate_living())


def _find_containing(address: int, storages: Iterable[TrackedStorage]) -> TrackedStorage | None:
    return next((storage for storage in storages if storage.start <= address < storage.end), None)
