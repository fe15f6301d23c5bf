"""A launch's arguments as checks need them: pointers with the bytes behind each, and numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES
from harness.sanitizer.violations.named_memory import NamedMemory

_UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class PointerArgument(NamedMemory):
    """A pointer argument and the memory that it may reach, without a reference to its tensor."""

    made_empty: bool = False  # a storage from `torch.empty`

    @property
    def reachable_bytes(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {list(self.shape)}"


def find_overlapping_pointers(pointers: Sequence[PointerArgument]) -> tuple[tuple[int, int], ...]:
    """Find pairs of pointers, by position, that share memory."""
    ends = [(each.start, each.end) for each in pointers]
    return tuple(
        (first, second)
        for first, second in itertools.combinations(range(len(ends)), 2)
        if max(ends[first][0], ends[second][0]) < min(ends[first][1], ends[second][1])
    )


def flatten_arguments(
    kernel: Any, args: tuple[Any, ...], options: dict[str, Any], whole_storages: bool = False
) -> tuple[tuple[PointerArgument, ...], dict[str, Any]]:
    """Return a launch's pointers, in the order of the kernel's parameters, and its numbers."""
    pointers: list[PointerArgument] = []
    scalars: dict[str, Any] = {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        value = args[place] if place < len(args) else options.get(name, parameter.default)
        for inner, leaf in _iter_leaves(name, value):
            if hasattr(leaf, "data_ptr"):
                pointers.append(_make_pointer_argument(inner, leaf, whole_storages))
            elif isinstance(leaf, (bool, int, float)):
                scalars[inner] = leaf
    return tuple(pointers), scalars


def _iter_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from _iter_leaves(f"{name}[{place}]", item)
    else:
        yield name, value


def compute_reach(tensor: torch.Tensor) -> int:
    """Compute the bytes from a tensor's first element to the end of its last one."""
    if not tensor.numel():
        return 0
    if tensor.is_contiguous():
        return int(tensor.numel()) * int(tensor.element_size())
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((side - 1) * stride for side, stride in sides)
    return int((last + 1) * tensor.element_size())


def _make_pointer_argument(name: str, value: Any, whole_storages: bool) -> PointerArgument:
    tensor = getattr(value, "base", None) if not isinstance(value, torch.Tensor) else value
    if not isinstance(tensor, torch.Tensor):
        start = value.data_ptr()
        return PointerArgument(name, start, start + _UNBOUNDED, 1, (), "a pointer")
    start, size = tensor.data_ptr(), tensor.element_size()
    if whole_storages:
        # Also in a capture: it gets a buffer's slice for one batch, and a replay for a larger batch
        # goes on behind the slice.
        storage = tensor.untyped_storage()
        end = storage.data_ptr() + storage.nbytes()
    else:
        end = start + compute_reach(tensor)
    kind = str(tensor.dtype).removeprefix("torch.")
    empty = bool(EMPTY_STORAGES) and EMPTY_STORAGES.contains(tensor.untyped_storage().data_ptr())
    return PointerArgument(name, start, end, size, tuple(tensor.shape), kind, empty)
