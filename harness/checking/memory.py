"""What a checked session knows of memory: storages, what was written in them, and by whom.

Knows torch and numpy, not Triton. Shadows lie beside a storage, one byte or one number an element,
and are mapped lazily, so that the shadow of a virtual tensor costs what is touched of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.checking.virtual import untouched

Array = Any
Index = Any
Program = tuple[int, int, int]


@dataclass(slots=True)
class Span:
    """The bytes that one tensor (a view of a storage, perhaps) reaches."""

    name: str
    start: int
    end: int
    itemsize: int
    shape: tuple[int, ...]
    kind: str
    storage: Storage

    def __str__(self) -> str:
        return f"{self.name} ({self.kind} {list(self.shape)})"

    def index_of(self, address: int) -> int:
        return (address - self.start) // self.itemsize


@dataclass(slots=True, eq=False)
class Fence:
    """What of a tensor each program may touch; None where anything goes."""

    tensor: torch.Tensor
    write: Callable[[Program], Index] | None
    read: Callable[[Program], Index] | None
    masks: dict[tuple[str, Program], Array] = field(default_factory=dict)

    def allowed(self, kind: str, program: Program, storage: Storage) -> Array | None:
        """The bytes of the storage that may be touched, or None for all of them."""
        rule = self.write if kind == "write" else self.read
        if rule is None:
            return None
        if (kind, program) not in self.masks:
            self.make(kind, (program,), storage)
        return self.masks[kind, program]

    def make(self, kind: str, programs: Iterable[Program], storage: Storage) -> None:
        """The masks of these programs, in one piece: each alone would take as long as a launch."""
        rule = self.write if kind == "write" else self.read
        new = [program for program in programs if (kind, program) not in self.masks]
        if rule is None or not new:
            return
        made = self._rows(storage, [(rule(program),) for program in new])
        self.masks.update(zip(((kind, program) for program in new), made.numpy(), strict=True))

    def mask(self, storage: Storage, indices: Iterable[Index]) -> torch.Tensor:
        """One byte a byte of the storage: 0 for the tensor's own elements that no index names."""
        return self._rows(storage, [indices])[0]

    def _rows(self, storage: Storage, many: Sequence[Iterable[Index]]) -> torch.Tensor:
        rows = torch.ones((len(many), storage.size), dtype=torch.uint8)
        own = as_bytes(rows, self.tensor)
        own.zero_()
        for mask, indices in zip(own.numpy(), many, strict=True):
            for index in indices:
                if index is not None:
                    mask[index] = 1
        return rows


def as_bytes(shadow: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A storage's byte shadow in the shape of one of its tensors, an element's bytes last.

    Of several shadows, a row each, as many.
    """
    size = tensor.element_size()
    return torch.as_strided(
        shadow,
        (*shadow.shape[:-1], *tensor.shape, size),
        (*shadow.stride()[:-1], *(stride * size for stride in tensor.stride()), 1),
        tensor.storage_offset() * size,
    )


class Storage:
    """One piece of memory, for as long as it lives."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        storage = tensor.untyped_storage()
        self.name = name
        self.start = storage.data_ptr()
        self.size = storage.nbytes()
        self.end = self.start + self.size
        self.fences: list[Fence] = []
        self.unwritten: torch.Tensor | None = None  # one byte a byte: 1 where nobody wrote
        self._alive = StorageWeakRef(storage)

    @property
    def freed(self) -> bool:
        return bool(self._alive.expired())

    def born_empty(self) -> None:
        self.unwritten = untouched(self.size)
        self.unwritten.fill_(1)

    def forget_unwritten(self) -> None:
        self.unwritten = None

    def poisoned(self, tensor: torch.Tensor) -> None:
        if self.unwritten is None:
            self.unwritten = untouched(self.size)
        as_bytes(self.unwritten, tensor).fill_(1)


class Memory:
    """All storages that a session has met."""

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._graves: list[Storage] = []

    def forget(self) -> None:
        self._storages.clear()
        self._graves.clear()

    def storage_of(self, tensor: torch.Tensor, name: str = "a tensor") -> Storage:
        start = tensor.untyped_storage().data_ptr()
        found = self._storages.get(start)
        if (
            found is not None
            and not found.freed
            and found.size == tensor.untyped_storage().nbytes()
        ):
            return found
        return self._met(tensor, name)

    def _met(self, tensor: torch.Tensor, name: str) -> Storage:
        new = Storage(tensor, name)
        old = self._storages.get(new.start)
        if old is not None:
            self._graves.append(old)
        self._graves = [
            grave for grave in self._graves if grave.end <= new.start or grave.start >= new.end
        ]
        if new.size:
            self._storages[new.start] = new
        return new

    def known(self, tensor: torch.Tensor) -> Storage | None:
        """The storage, if the session has anything to say of it."""
        found = self._storages.get(tensor.untyped_storage().data_ptr())
        return None if found is None or found.freed else found

    def span_of(self, tensor: torch.Tensor, name: str, itemsize: int | None = None) -> Span:
        storage = self.storage_of(tensor, name)
        size = itemsize or tensor.element_size()
        reach = 0
        if tensor.numel():
            last = sum(
                (length - 1) * stride
                for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            reach = (last + 1) * tensor.element_size()
        start = tensor.data_ptr()
        kind = str(tensor.dtype).removeprefix("torch.")
        return Span(name, start, start + reach, size, tuple(tensor.shape), kind, storage)

    def living(self) -> Iterator[Storage]:
        return (storage for storage in self._storages.values() if not storage.freed)

    def freed_at(self, address: int) -> Storage | None:
        dead = [storage for storage in self._storages.values() if storage.freed]
        for storage in (*dead, *self._graves):
            if storage.start <= address < storage.end:
                return storage
        return None

    def living_at(self, address: int) -> Storage | None:
        for storage in self.living():
            if storage.start <= address < storage.end:
                return storage
        return None
