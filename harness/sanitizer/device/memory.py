"""The virtual device's memory: tensors that torch takes for CUDA's, over bytes of this machine.

Invariant: a device tensor owns its bytes through a CPU tensor, so every CPU operator and kernel can
work on them in place. The two are made from each other by DLPack, whose capsule names the device
of its bytes: the capsule of a CPU tensor, with the device changed to CUDA, becomes a real CUDA
tensor. Its `device`, `is_cuda`, views and dispatch are torch's own from there on, in every thread
and every fork.

    device = to_device(torch.arange(4), 0)  # device(type='cuda', index=0)
    to_host(device).add_(1)                 # both see 1, 2, 3, 4
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.sanitizer.device.cards import get_card
from harness.sanitizer.device.refusals import UnansweredName

_bindings: Any = torch._C
_to_capsule, _from_capsule = _bindings._to_dlpack, _bindings._from_dlpack
_CPU, _CUDA = 1, 2  # DLPack's device types
_DEVICE_OFFSET = 8  # bytes, behind the data pointer: two int32, the type and the index
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_NORESERVE = 0x4000  # Linux allocates pages at the first access, without checking that all fit
MAPPED_SIZE = 1 << 24  # bytes from which an allocation is mapped, and takes touched pages alone

_is_expired: Callable[[int], bool] = torch.UntypedStorage._expired

_Allocation = tuple[StorageWeakRef, int, int]  # its bytes and its device
_MAX_RECENT = 1024

# Called with a new device tensor, and the CPU tensor that owns its bytes and dies with them.
ALLOCATION_OBSERVERS: list[Callable[[torch.Tensor, torch.Tensor], None]] = []


def to_device(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Return a device tensor over the bytes of a CPU tensor that nothing else writes.

    While this thread's tensors get their bytes from a pool, it is over a copy there.
    """
    if (take := get_byte_source()) is None or not tensor.untyped_storage().nbytes():
        return _own_tensor(tensor, index, is_counted=_counts_memory())
    return _own_tensor(_copy_to(take, tensor, index), index, is_counted=False)


@contextlib.contextmanager
def record_allocations() -> Iterator[set[int]]:
    """Yield the addresses of this thread's new allocations."""
    addresses: set[int] = set()
    thread = threading.get_ident()

    def record(device: torch.Tensor, _: torch.Tensor) -> None:
        if threading.get_ident() == thread and (address := device.untyped_storage().data_ptr()):
            addresses.add(address)

    ALLOCATION_OBSERVERS.append(record)
    try:
        yield addresses
    finally:
        ALLOCATION_OBSERVERS.remove(record)


def _own_tensor(tensor: torch.Tensor, index: int, is_counted: bool) -> torch.Tensor:
    device = relabel_as_device(tensor, index)
    (LEDGER.add if is_counted else LEDGER.add_uncounted)(device, index)
    for observe in tuple(ALLOCATION_OBSERVERS):
        observe(device, tensor)
    return device


# Gives the bytes of a new tensor, by their number and the device's index.
ByteSource = Callable[[int, int], torch.Tensor]
_thread = threading.local()


def get_byte_source() -> ByteSource | None:
    return getattr(_thread, "byte_source", None)


def set_byte_source(source: ByteSource | None) -> None:
    """Have this thread's new tensors get their bytes from a function: a graph's pool."""
    _thread.byte_source = source


def _counts_memory() -> bool:
    return not getattr(_thread, "is_uncounted", False)


@contextlib.contextmanager
def leave_uncounted() -> Iterator[None]:
    """Count no new tensor of this thread: a GPU makes none of them."""
    before, _thread.is_uncounted = not _counts_memory(), True
    try:
        yield
    finally:
        _thread.is_uncounted = before


def _copy_to(take: ByteSource, tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Copy a CPU tensor with all that its storage has; without values nothing is copied."""
    tensor = tensor.resolve_conj().resolve_neg()
    storage = tensor.untyped_storage()
    flat = take(storage.nbytes(), index)
    if has_values(tensor):
        flat.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
    layout = tensor.storage_offset(), tensor.size(), tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(flat.untyped_storage(), *layout)


def relabel_as_device(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Return a device tensor over bytes that another device tensor owns."""
    return _relabel_tensor(tensor, _CUDA | index << 32)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the bytes of a device tensor, which stay alive with it.

    A view that is conjugated or negated when it is read, such as `x.conj()`, stays one.
    """
    host = _relabel_tensor(tensor, _CPU)
    if tensor.is_conj():
        host = host.conj()
    return torch._neg_view(host) if tensor.is_neg() else host


def view_storage(other: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with a tensor's layout of the storage that another tensor is a view of."""
    count = other.untyped_storage().nbytes() // other.dtype.itemsize
    flat = other.as_strided((count,), (1,), 0).view(torch.uint8)
    size = tensor.dtype.itemsize
    flat = flat[: len(flat) // size * size].view(tensor.dtype)
    view = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    view = view.conj() if tensor.is_conj() else view
    return torch._neg_view(view) if tensor.is_neg() else view


def make_unowned_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a device tensor over the same bytes, which does not keep them alive."""
    storage = tensor.untyped_storage()
    return make_unowned(
        (storage.data_ptr(), storage.nbytes(), tensor.get_device()),
        (tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()),
    )


def make_unowned(storage: tuple[int, int, int], layout: tuple[Any, ...]) -> torch.Tensor:
    """Make a device tensor from an address, its size and device, and the tensor's layout."""
    address, nbytes, index = storage
    dtype, offset, size, stride = layout
    flat = _bindings._construct_storage_from_data_pointer(address, torch.device("cpu"), nbytes)
    host = torch.empty(0, dtype=dtype).set_(flat, offset, size, stride)
    return relabel_as_device(host, index)


def _relabel_tensor(tensor: torch.Tensor, device: int) -> torch.Tensor:
    capsule = _to_capsule(tensor)
    pointer = _get_pointer(capsule, b"dltensor")
    ctypes.c_int64.from_address(pointer + _DEVICE_OFFSET).value = device
    return _from_capsule(capsule)


def allocate_tensor(
    size: Sequence[int], stride: Sequence[int] | None, dtype: torch.dtype, index: int
) -> torch.Tensor:
    """Allocate an uninitialized device tensor; large ones are zeros that take no memory yet."""
    if stride is None:
        count = math.prod(size)
    elif 0 in size:
        count = 0
    else:
        count = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    nbytes = count * dtype.itemsize
    if nbytes and (take := get_byte_source()) is not None:
        device = _own_tensor(take(nbytes, index).view(dtype), index, is_counted=False)
    else:
        if is_counted := _counts_memory():
            LEDGER.admit(nbytes, index)
        is_large = nbytes >= MAPPED_SIZE
        flat = map_zero_bytes(nbytes).view(dtype) if is_large else _make_small(count, dtype=dtype)
        device = _own_tensor(flat, index, is_counted)
    return device.as_strided(tuple(size), tuple(stride or _contiguous_strides(size)))


_make_small: Callable[..., torch.Tensor] = torch.empty
_SMALLEST_MAPPING = 1 << 18  # bytes


def _have_values(tensor: torch.Tensor) -> bool:
    return True


has_values: Callable[[torch.Tensor], bool] = _have_values  # whether something computes a tensor


def map_all_allocations(computes: Callable[[torch.Tensor], bool]) -> None:
    """Map all but the smallest allocations from here on, and fill the smallest with zeros.

    What nothing computes then takes no memory, and has the same value each time.
    """
    global _make_small, MAPPED_SIZE, has_values
    _make_small = torch.zeros
    MAPPED_SIZE = _SMALLEST_MAPPING
    has_values = computes


def begins_with_zeros() -> bool:
    """Return whether each new tensor is of zeros, however small it is."""
    return _make_small is torch.zeros


def map_zero_bytes(size: int) -> torch.Tensor:
    """Map bytes of zeros, none of them in memory yet."""
    if size == 0:
        return torch.zeros(0, dtype=torch.uint8)
    return torch.frombuffer(map_bytes(size), dtype=torch.uint8)


def map_bytes(size: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return mmap.mmap(-1, size, flags=flags)


def _contiguous_strides(size: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return strides[::-1]


_CONTENTS = ("size", "sequence")


def install_storages() -> None:
    """Let storages of the device be made by size, as `deepcopy` does, or from bytes."""
    original: Any = torch.UntypedStorage.__new__

    def make(cls: type, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return original(cls, *args, device=device, **options)
        contents = [*args, *(options.pop(name) for name in _CONTENTS if name in options)]
        if len(contents) > 1 or any(value is not None for value in options.values()):
            names = ", ".join((*map(repr, contents), *options))
            raise UnansweredName(
                f"a storage of the device is made by its size or by its bytes alone, not by {names}"
            )
        content = contents[0] if contents else 0
        if isinstance(content, int):
            return torch.empty(content, dtype=torch.uint8, device=device).untyped_storage()
        host = original(cls, content)
        return torch.tensor(list(host), dtype=torch.uint8, device=device).untyped_storage()

    storage: Any = torch.UntypedStorage
    storage.__new__ = make


class AllocationLedger:
    """The living allocations of each device, by which it can run out of memory.

    Most allocations are the weights and pools, which stay. So the ones that lived at the last full
    count are settled, and an estimate looks at the recent ones alone: it may be too high by what
    was freed of the settled ones.
    """

    def __init__(self) -> None:
        self._recent: list[_Allocation] = []
        self._settled: list[_Allocation] = []
        self._settled_bytes: Counter[int] = Counter()  # by device
        self._uncounted: list[_Allocation] = []  # tensors in pools, and of replays
        self._segments: list[_Allocation] = []  # of pools
        self._lock = threading.Lock()
        self.peaks: dict[int, int] = {}
        self.is_limited = True  # by the card's memory

    def add(self, tensor: torch.Tensor, index: int) -> None:
        storage = tensor.untyped_storage()
        self._recent.append((StorageWeakRef(storage), storage.nbytes(), index))
        if len(self._recent) >= _MAX_RECENT:
            self._settle()

    def add_uncounted(self, tensor: torch.Tensor, index: int) -> None:
        """Add a tensor that takes no memory of its own, as one in a pool's segment."""
        storage = tensor.untyped_storage()
        with self._lock:
            if len(self._uncounted) % _MAX_RECENT == _MAX_RECENT - 1:
                self._uncounted = [one for one in self._uncounted if not _is_expired(one[0].cdata)]
            self._uncounted.append((StorageWeakRef(storage), storage.nbytes(), index))

    def add_segment(self, tensor: torch.Tensor, index: int) -> None:
        """Add the bytes that a pool reserves."""
        storage = tensor.untyped_storage()
        self._segments.append((StorageWeakRef(storage), storage.nbytes(), index))

    def _measure_segments(self, index: int) -> int:
        self._segments = [
            segment for segment in self._segments if not _is_expired(segment[0].cdata)
        ]
        return sum(nbytes for _, nbytes, owner in self._segments if owner == index)

    @contextlib.contextmanager
    def lift_limit(self) -> Iterator[None]:
        """Admit allocations meanwhile that do not fit on the card."""
        before, self.is_limited = self.is_limited, False
        try:
            yield
        finally:
            self.is_limited = before

    def admit(self, nbytes: int, index: int) -> None:
        """Raise torch's own error if an allocation does not fit on the card."""
        if nbytes < MAPPED_SIZE or not self.is_limited:
            return
        card, used = get_card(), self.estimate(index)
        if used + nbytes > card.memory:
            gc.collect()  # reference cycles hold tensors that no program reaches any more
            used = self.measure(index)
        if used + nbytes > card.memory:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {nbytes / 2**30:.2f} GiB. GPU {index} has "
                f"a total capacity of {card.memory / 2**30:.2f} GiB of which "
                f"{(card.memory - used) / 2**30:.2f} GiB is free (virtual {card.name})."
            )

    def find(self, address: int) -> tuple[int, int] | None:
        """Find the living allocation that contains an address: its first byte and its size.

        The bytes of a tensor in a pool stay an allocation when it is freed: the pool's segment.
        """
        tensors = (*self._recent, *self._settled, *self._uncounted)
        for reference, size, _ in (*tensors, *self._segments):
            if reference.expired():
                continue
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            base = 0 if storage is None else storage.data_ptr()
            if base <= address < base + size:
                return base, size
        return None

    def measure(self, index: int) -> int:
        """Return the bytes of a device's living allocations."""
        self._settle()
        used = self._settled_bytes[index] + self._measure_segments(index)
        self.peaks[index] = max(used, self.peaks.get(index, 0))
        return used

    def list_storages(self) -> list[torch.UntypedStorage]:
        """Return the storages of all living allocations."""
        restore: Any = torch.UntypedStorage._new_with_weak_ptr  # None for a freed one
        known = (*self._settled, *self._recent, *self._uncounted)
        restored = (restore(reference.cdata) for reference, _, _ in known)
        return [storage for storage in restored if storage is not None]

    def estimate(self, index: int) -> int:
        """Return these bytes in less time: never less than they are."""
        with self._lock:
            self._recent = [one for one in self._recent if not _is_expired(one[0].cdata)]
            recent = sum(nbytes for _, nbytes, owner in self._recent if owner == index)
        return self._settled_bytes[index] + recent + self._measure_segments(index)

    def _settle(self) -> None:
        with self._lock:
            living = [
                one for one in (*self._settled, *self._recent) if not _is_expired(one[0].cdata)
            ]
            self._settled, self._recent = living, []
            self._settled_bytes.clear()
            for _, nbytes, owner in living:
                self._settled_bytes[owner] += nbytes


LEDGER = AllocationLedger()
