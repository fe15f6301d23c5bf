"""Memory that was made empty: filled with a pattern, so that what nobody wrote is still that.

Whoever writes, and by whatever means, takes the pattern away. While a graph is captured nothing is
filled, since each replay would do it again, to what may have been written since.
Loads torch alone, since a server makes its tensors before it launches a kernel of Triton's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

POISON = 0xFB  # of each byte: no float worth having, and as an index far before every tensor
_MIN_CLEANUP_SIZE = 1 << 12


class EmptyStorages:
    """Storages that were made empty, for as long as they live."""

    def __init__(self) -> None:
        self._alive: dict[int, StorageWeakRef] = {}
        self._cleanup_size = _MIN_CLEANUP_SIZE  # so many, and who is gone is looked for

    def register(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if len(self._alive) >= self._cleanup_size:
            self._alive = {at: one for at, one in self._alive.items() if not one.expired()}
            self._cleanup_size = max(_MIN_CLEANUP_SIZE, 2 * len(self._alive))
        self._alive[storage.data_ptr()] = StorageWeakRef(storage)

    def __len__(self) -> int:
        return len(self._alive)

    def contains(self, start: int) -> bool:
        """Whether the storage that lies there was made empty."""
        found = self._alive.get(start)
        return found is not None and not found.expired()


EMPTY_STORAGES = EmptyStorages()


def fill_with_poison(tensor: Any) -> None:
    """A tensor that was made empty just now, and has a storage of its own."""
    if type(tensor) is not torch.Tensor or not tensor.is_cuda or not tensor.numel():
        return
    if tensor.dtype == torch.bool or torch.cuda.is_current_stream_capturing():
        return
    with torch.no_grad():
        room = torch.Tensor.new_empty(tensor.detach(), 0, dtype=torch.uint8)
        room.set_(tensor.untyped_storage()).fill_(POISON)
    EMPTY_STORAGES.register(tensor)


def patch_empty_factories() -> None:
    """Fill what Python has torch make empty, from here on. Once a process."""
    if getattr(torch.empty, "by_unfix", False):
        return
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted"):
        made = _wrap_factory(getattr(torch, name))
        setattr(torch, name, made)
        torch.jit._builtins._register_builtin(made, f"aten::{name}")
    for name in ("new_empty", "new_empty_strided"):
        setattr(torch.Tensor, name, _wrap_factory(getattr(torch.Tensor, name)))


def _wrap_factory(factory: Any) -> Any:
    @functools.wraps(factory)
    def made(*args: Any, **options: Any) -> Any:
        tensor = factory(*args, **options)
        if not torch.compiler.is_compiling() and options.get("out") is None:
            fill_with_poison(tensor)
        return tensor

    made.by_unfix = True  # type: ignore[attr-defined]
    return made
