"""Poison in memory from `torch.empty`: a read that finds it reads uninitialized memory.

Any write, by whatever means, removes the poison. During a graph capture nothing is filled: each
replay would fill it again, over what may have been written since. Imports torch alone, since a
server makes its tensors before it launches a Triton kernel.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from harness.sanitizer.gpu import POISON

_MIN_CLEANUP_SIZE = 1 << 12


class EmptyStorages:
    """The storages from `torch.empty`, for as long as they live."""

    def __init__(self) -> None:
        self._alive: dict[int, StorageWeakRef] = {}
        self._cleanup_size = _MIN_CLEANUP_SIZE  # at this size, freed storages are dropped

    def register(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if len(self._alive) >= self._cleanup_size:
            self._alive = {at: each for at, each in self._alive.items() if not each.expired()}
            self._cleanup_size = max(_MIN_CLEANUP_SIZE, 2 * len(self._alive))
        self._alive[storage.data_ptr()] = StorageWeakRef(storage)

    def __len__(self) -> int:
        return len(self._alive)

    def contains(self, start: int) -> bool:
        """Return whether a storage from `torch.empty` starts there."""
        storage = self._alive.get(start)
        return storage is not None and not storage.expired()


EMPTY_STORAGES = EmptyStorages()


def fill_with_poison(tensor: Any) -> None:
    """Fill a new tensor that has a storage of its own."""
    if type(tensor) is not torch.Tensor or not tensor.is_cuda or not tensor.numel():
        return
    if tensor.dtype == torch.bool or torch.cuda.is_current_stream_capturing():
        return
    with torch.no_grad():
        storage_bytes = torch.Tensor.new_empty(tensor.detach(), 0, dtype=torch.uint8)
        storage_bytes.set_(tensor.untyped_storage()).fill_(POISON)
    EMPTY_STORAGES.register(tensor)


def patch_empty_factories() -> None:
    """Fill tensors of `torch.empty` and its relatives from here on; call it once per process."""
    if getattr(torch.empty, "by_unfix", False):
        return
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted"):
        factory = _wrap_factory(getattr(torch, name))
        setattr(torch, name, factory)
        torch.jit._builtins._register_builtin(factory, f"aten::{name}")
    for name in ("new_empty", "new_empty_strided"):
        setattr(torch.Tensor, name, _wrap_factory(getattr(torch.Tensor, name)))


def _wrap_factory(factory: Any) -> Any:
    @functools.wraps(factory)
    def make_poisoned(*args: Any, **options: Any) -> Any:
        tensor = factory(*args, **options)
        if not torch.compiler.is_compiling() and options.get("out") is None:
            fill_with_poison(tensor)
        return tensor

    make_poisoned.by_unfix = True  # type: ignore[attr-defined]
    return make_poisoned
