"""The arguments of host calls and launches: tensors as memory with names, parameters as bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from harness.sanitizer.ptx.launch import Allocation


def iterate_tensors(
    names: tuple[str, ...], args: Iterable[Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a call, each with the name of its parameter."""
    for place, value in enumerate(args):
        name = names[place] if place < len(names) else f"argument {place}"
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            for index, inner in enumerate(value):
                if isinstance(inner, torch.Tensor):
                    yield f"{name}[{index}]", inner


def pack_parameters(layout: Sequence[tuple[int, int]], arguments: Any) -> bytes:
    """Pack a kernel's parameters at their offsets; `arguments` points at a pointer to each."""
    packed = bytearray(max((offset + size for offset, size in layout), default=0))
    for place, (offset, size) in enumerate(layout):
        packed[offset : offset + size] = ctypes.string_at(arguments[place], size)
    return bytes(packed)


def describe_tensor(name: str, tensor: torch.Tensor) -> Allocation:
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    count = 0
    if tensor.numel():
        count = 1 + sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
    dtype = str(tensor.dtype).removeprefix("torch.")
    storage = tensor.untyped_storage()
    # Host code may read such a tensor; a kernel may not.
    is_pageable = tensor.device.type == "cpu" and not tensor.is_pinned()
    return Allocation(
        name,
        tensor.data_ptr(),
        0 if is_pageable else count * tensor.itemsize,
        dtype,
        shape,
        strides,
        storage.data_ptr(),
        storage.nbytes(),
        is_pageable=is_pageable,
    )
