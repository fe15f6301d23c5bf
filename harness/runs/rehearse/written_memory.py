"""What of the device's memory something has written, where it is known exactly.

Invariant: memory counts as uninitialized only if it is known that nothing wrote it. Known exactly
are what torch's operators write, and what kernels of integers alone write, since these run whole.
A kernel with floats runs as a sample of its programs, and a CUDA operator as a stand-in: all that
one of them may write counts as written. What was there when the deployment had been loaded counts
as written, too, and so does all memory once a layer has passed its input on.

An integer that comes of floats without arithmetic is not the server's, so an address that is made
of it says nothing. A storage with such values is `uncertain`, and so is what is computed from it,
and a copy of it on the host; a launch that loads values of one is not asked what it reads. It is
certain again when an operator overwrites all of it with other values. What the host computes of
such values is not followed.

Example: `kv_indices = torch.empty(n)` is uninitialized. A kernel of integers fills all but its last
request's share; the attention kernel, of which twelve programs run, reads an index of that request,
and its line is reported.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from harness.runs.rehearse.uninitialized_shadow import clear_range, make_shadow
from harness.sanitizer.check.tracked_memory import (
    TensorSpan,
    TrackedStorage,
    view_shadow_bytes,
)
from harness.sanitizer.cpu.lowering import LoweredKernel
from harness.sanitizer.device import dispatch, dry_run, memory
from harness.sanitizer.device.nested_tensors import list_tensors

_ADDRESS_SIZE = 8  # bytes
_MOST_ADDRESSES = 1 << 20  # of a tensor that are looked at
_LARGEST_COUNT = 1 << 32  # no address of this process is as small
_LARGEST_COPY = 1 << 20  # bytes of a shadow
_OVERWRITING = frozenset({"aten::copy_", "aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_"})
_HOST_COPIES = frozenset({"aten::copy_", "aten::_to_copy"})
_LARGEST_FILL = 1 << 25  # bytes of a strided view that are marked one by one


@dataclass(slots=True)
class UnwrittenStorage:
    """A storage of which something is uninitialized."""

    storage: TrackedStorage
    shadow: torch.Tensor | None = None  # None: all of it, and nobody has asked yet

    @property
    def is_freed(self) -> bool:
        return self.storage.is_freed

    def get_shadow(self) -> torch.Tensor:
        if self.shadow is None:
            self.shadow = make_shadow(self.storage.size)
        return self.shadow

    def copy(self) -> UnwrittenStorage:
        """Copy a shadow that is small; a large one stays the same, with what is written later."""
        shadow = self.shadow
        if shadow is not None and shadow.numel() <= _LARGEST_COPY:
            shadow = shadow.clone()
        return replace(self, shadow=shadow)


_Kept = TypeVar("_Kept", TrackedStorage, UnwrittenStorage)


class WrittenMemory:
    """Follows what is allocated and written while it is open."""

    def __init__(self) -> None:
        self._unwritten: dict[int, UnwrittenStorage] = {}  # by the storage's address
        # Storages whose values say nothing, by address; freed ones are still among them.
        self._uncertain: dict[int, TrackedStorage] = {}
        self._allocated: set[int] = set()  # addresses, since `restore_afterwards` began
        self.is_followed = False
        self._shadowed: list[TrackedStorage] = []  # those with a shadow for the launch that runs

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        observers: tuple[tuple[list[Any], Any], ...] = (
            (memory.ALLOCATION_OBSERVERS, self._observe_allocation),
            (dispatch.OBSERVERS, self._observe_operator),
            (dispatch.WRITE_OBSERVERS, self._observe_writes),
            (dispatch.UNCOMPUTED_OBSERVERS, self._observe_uncomputed),
        )
        for observed, observer in observers:
            observed.append(observer)
        self.is_followed = True
        try:
            yield
        finally:
            self.is_followed = False
            for observed, observer in observers:
                observed.remove(observer)
            self.forget()

    def forget(self) -> None:
        """Take all memory that is there for written."""
        self._unwritten.clear()

    @contextlib.contextmanager
    def restore_afterwards(self) -> Iterator[None]:
        """Know afterwards what was known before of each storage that was there and still lives."""
        unwritten = {start: one.copy() for start, one in self._unwritten.items()}
        uncertain = dict(self._uncertain)
        self._allocated = set()
        try:
            yield
        finally:
            self._unwritten = _keep_living(unwritten) | self._list_allocated(self._unwritten)
            self._uncertain = _keep_living(uncertain) | self._list_allocated(self._uncertain)

    def _list_allocated(self, storages: dict[int, _Kept]) -> dict[int, _Kept]:
        living = _keep_living(storages)
        return {start: one for start, one in living.items() if start in self._allocated}

    # What others do

    def _observe_allocation(self, tensor: torch.Tensor, owner: torch.Tensor) -> None:
        start = _get_start(tensor)
        self._unwritten = _keep_living(self._unwritten)
        self._unwritten.pop(start, None)
        self._uncertain.pop(start, None)
        self._allocated.add(start)

    def _observe_operator(
        self,
        plan: dispatch.OperatorPlan,
        args: tuple[Any, ...],
        options: dict[str, Any],
        result: Any,
    ) -> None:
        if plan.is_view:
            return
        if plan.name.startswith("aten::empty"):
            if result.numel():
                storage = TrackedStorage(result.untyped_storage(), "")
                self._unwritten[storage.start] = UnwrittenStorage(storage)
            return
        on_host = plan.name in _HOST_COPIES
        places = {at for at, name in plan.outputs if name in plan.resizable}
        if plan.name in _OVERWRITING:
            places.add(0)
        names = {name for at, name in plan.outputs if at in places}
        outputs = [args[at] if at < len(args) else options.get(name) for at, name in plan.outputs]
        written = _list_tensors(outputs, on_host)
        for tensor in written:
            self.mark_written(tensor)
        read = (
            [value for at, value in enumerate(args) if at not in places],
            [value for name, value in options.items() if name not in names],
        )
        if any(map(self._says_nothing, _list_tensors(read, on_host))) or any(
            map(_is_large, written)
        ):
            for tensor in _list_tensors((result, outputs), on_host):
                self._add_uncertain(tensor)
        elif len(places) == len(plan.outputs) and all(map(_is_computed, written)):
            for tensor in filter(_covers_storage, written):
                self._uncertain.pop(_get_start(tensor), None)

    def _says_nothing(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's values are not those of a server."""
        storage = self._uncertain.get(_get_start(tensor))
        return _is_large(tensor) or (storage is not None and not storage.is_freed)

    def _observe_uncomputed(self, values: Any) -> None:
        for tensor in _list_tensors(values):
            self._add_uncertain(tensor)

    def _add_uncertain(self, tensor: torch.Tensor) -> None:
        storage = TrackedStorage(tensor.untyped_storage(), "")
        if storage.size:
            self._uncertain[storage.start] = storage

    def _observe_writes(self, values: Any) -> None:
        """Take what a stand-in or a collective may have written for written, as it is."""
        for tensor in _list_tensors(values):
            self.mark_written(tensor)
            if tensor.is_floating_point():
                self._add_uncertain(tensor)

    def mark_written(self, tensor: torch.Tensor) -> None:
        """Mark the elements of a tensor as written."""
        start = _get_start(tensor)
        storage = self._unwritten.get(start)
        if storage is None or not tensor.numel():
            return
        first = tensor.storage_offset() * tensor.itemsize
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        end = first + (reach + 1) * tensor.itemsize
        nbytes = tensor.numel() * tensor.itemsize
        is_dense = end - first <= nbytes or nbytes > _LARGEST_FILL
        if is_dense and (first, end) == (0, storage.storage.size):
            del self._unwritten[start]
        elif is_dense:
            clear_range(storage.get_shadow(), first, end)
        else:
            view_shadow_bytes(storage.get_shadow(), tensor).fill_(0)

    # Launches of Triton kernels

    def describe_unwritten(self, tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """Say of each tensor whether all (2) or part (1) of its storage may be uninitialized."""
        known = [self._unwritten.get(_get_start(tensor)) for tensor in tensors]
        return tuple(0 if one is None else 2 if one.shadow is None else 1 for one in known)

    def find_shadows(self, tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor] | None:
        """Find the shadows of what is unwritten, by the storage's address.

        None if these tensors have integers that are not a server's, or nothing is followed.
        """
        known = {_get_start(tensor): tensor for tensor in tensors}
        integers = (start for start, one in known.items() if not one.is_floating_point())
        if not self.is_followed or any(start in self._uncertain for start in integers):
            return None
        return {
            start: self._unwritten[start].get_shadow() for start in known & self._unwritten.keys()
        }

    def loads_certain_values(
        self, lowered: LoweredKernel, spans: Sequence[TensorSpan | None]
    ) -> bool:
        """Return whether a launch's addresses and masks are made of a server's values."""
        loaded = (spans[place] for place in lowered.loaded_parameters)
        if any(span is not None and span.storage.start in self._uncertain for span in loaded):
            return False
        return not (lowered.has_unknown_pointers and self._lead_to_uncertain_values(spans))

    def begin_launch(
        self,
        lowered: LoweredKernel,
        spans: Sequence[TensorSpan | None],
        is_whole: bool,
        is_certain: bool,
    ) -> frozenset[str] | None:
        """Give each storage that a launch reads its shadow; take what it may write for written.

        A whole launch marks what it writes in the shadows itself, if its values are a server's.
        Return the parameters whose memory it may write; None if that is any memory.
        """
        placed = {place: span.storage for place, span in enumerate(spans) if span is not None}
        if lowered.writes_unknown_memory:
            self.forget()
        if not (is_whole and is_certain):
            for place in lowered.write_sizes:
                if place in placed:
                    self._take_for_written(placed[place])
        for storage in placed.values():
            storage.uninitialized = None
            unwritten = self._unwritten.get(storage.start)
            if unwritten is not None and is_certain:
                storage.uninitialized = unwritten.get_shadow()
                self._shadowed.append(storage)
        names = (span.name for place in lowered.write_sizes if (span := spans[place]) is not None)
        return None if lowered.writes_unknown_memory else frozenset(names)

    def end_launch(self) -> None:
        """Take the shadows from the storages of a launch, which are known after they are freed."""
        for storage in self._shadowed:
            storage.uninitialized = None
        self._shadowed.clear()

    def _lead_to_uncertain_values(self, spans: Iterable[TensorSpan | None]) -> bool:
        """Return whether an address in a launch's arguments is one of memory that says nothing."""
        living = [storage for storage in self._uncertain.values() if not storage.is_freed]
        for span in spans:
            if span is None or span.itemsize != _ADDRESS_SIZE:
                continue
            count = (span.end - span.start) // _ADDRESS_SIZE
            if count > _MOST_ADDRESSES:
                return True
            addresses = np.array((ctypes.c_uint64 * count).from_address(span.start))
            addresses = addresses[addresses > _LARGEST_COUNT]
            for storage in living if addresses.size else ():
                if ((addresses >= storage.start) & (addresses < storage.end)).any():
                    return True
        return False

    def skip_launch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take what a launch that does not run may write for written."""
        for tensor in tensors:
            self._take_for_written(TrackedStorage(tensor.untyped_storage(), ""))

    def _take_for_written(self, storage: TrackedStorage) -> None:
        self._unwritten.pop(storage.start, None)
        if storage.size:
            self._uncertain[storage.start] = storage


def _keep_living(storages: dict[int, _Kept]) -> dict[int, _Kept]:
    return {start: one for start, one in storages.items() if not one.is_freed}


def _is_large(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.numel() >= dry_run.LARGE)


def _is_computed(tensor: torch.Tensor) -> bool:
    """Return whether a dry run computes what an operator writes here, whatever its operands."""
    return not tensor.is_floating_point() and tensor.numel() <= dry_run.LARGEST_COMPUTED


def _covers_storage(tensor: torch.Tensor) -> bool:
    size = tensor.untyped_storage().nbytes()
    return bool(tensor.is_contiguous()) and tensor.numel() * tensor.itemsize == size


def _get_start(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _list_tensors(values: Any, on_host: bool = False) -> list[torch.Tensor]:
    """List the device tensors among values; with `on_host` the host's, too."""
    return [one for one in list_tensors(values) if one.is_cuda or (on_host and one.is_cpu)]
