"""What a launch gives a kernel: its pointers, with what each may reach, and its numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.compiled.born import BORN

_ANYWHERE = 1 << 62


@dataclass(frozen=True, slots=True)
class Given:
    """A pointer as a launch gave it, without holding on to the tensor."""

    name: str
    start: int
    reach: int
    itemsize: int
    shape: tuple[int, ...]
    kind: str
    empty: bool = False  # it was when its storage was made

    def __str__(self) -> str:
        return f"{self.name} {self.kind} {list(self.shape)}"


def beside(pointers: Sequence[Given]) -> tuple[tuple[int, int], ...]:
    """Which two of them reach into the same memory."""
    ends = [(one.start, one.start + one.reach) for one in pointers]
    return tuple(
        (first, second)
        for first, second in itertools.combinations(range(len(ends)), 2)
        if max(ends[first][0], ends[second][0]) < min(ends[first][1], ends[second][1])
    )


def flattened(
    kernel: Any, args: tuple[Any, ...], options: dict[str, Any], whole: bool = False
) -> tuple[tuple[Given, ...], dict[str, Any]]:
    """A launch's pointers in the order of the kernel's parameters, and its numbers."""
    pointers: list[Given] = []
    scalars: dict[str, Any] = {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        value = args[place] if place < len(args) else options.get(name, parameter.default)
        for inner, leaf in _leaves(name, value):
            if hasattr(leaf, "data_ptr"):
                pointers.append(_given(inner, leaf, whole))
            elif isinstance(leaf, (bool, int, float)):
                scalars[inner] = leaf
    return tuple(pointers), scalars


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from _leaves(f"{name}[{place}]", part)
    else:
        yield name, value


def _given(name: str, value: Any, whole: bool) -> Given:
    tensor = getattr(value, "base", None) if not isinstance(value, torch.Tensor) else value
    if not isinstance(tensor, torch.Tensor):
        return Given(name, value.data_ptr(), _ANYWHERE, 1, (), "a pointer")
    start, size = tensor.data_ptr(), tensor.element_size()
    if whole:
        # Of a capture always: the part of a buffer that one batch needs is cut out before it, and
        # a replay for a larger one goes on behind it.
        storage = tensor.untyped_storage()
        reach = storage.data_ptr() + storage.nbytes() - start
    elif tensor.is_contiguous():
        reach = tensor.numel() * size
    elif tensor.numel():
        sides = zip(tensor.shape, tensor.stride(), strict=True)
        reach = (1 + sum((side - 1) * stride for side, stride in sides)) * size
    else:
        reach = 0
    kind = str(tensor.dtype).removeprefix("torch.")
    empty = bool(BORN) and BORN.has(tensor.untyped_storage().data_ptr())
    return Given(name, start, reach, size, tuple(tensor.shape), kind, empty)
