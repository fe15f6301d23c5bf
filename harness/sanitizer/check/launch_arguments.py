"""The arguments of a launch as 64 bits each, and the memory that each pointer may reach."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from harness.sanitizer.check.tracked_memory import MemoryTracker, TensorSpan, is_in_host_memory
from harness.sanitizer.ir.graph import ValueType
from harness.sanitizer.llvm.number_formats import encode_number, size_of
from harness.sanitizer.triton import adapter
from harness.sanitizer.triton.frontend import RuntimeArgument
from harness.sanitizer.violations.exceptions import UncheckableKernel

_UINT64_MASK = (1 << 64) - 1


def find_span(
    memory: MemoryTracker, name: str, value: Any, value_type: ValueType
) -> tuple[int, TensorSpan]:
    """Find a pointer's address and memory: its tensor, or what lies at an object's address."""
    base = getattr(value, "base", value)  # the tensor under a reinterpreted one
    size = size_of(value_type.pointee)
    if isinstance(base, torch.Tensor):
        if not is_in_host_memory(base):
            raise UncheckableKernel(f"{name} is on {base.device}: kernels run on the CPU here")
        span = memory.make_span(base, name, size)
        return span.start, span
    if not hasattr(value, "data_ptr"):
        raise UncheckableKernel(f"{name} is {type(value).__name__}, and not a tensor")
    address = int(value.data_ptr())
    storage = memory.find_living(address)
    if storage is None:
        words = f"{type(value).__name__} with an address in no memory that this session knows"
        raise UncheckableKernel(f"{name} is a {words}")
    shape = ((storage.end - storage.start) // size,)
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return address, TensorSpan(name, storage.start, storage.end, size, shape, kind, storage=storage)


def encode_descriptor(
    memory: MemoryTracker,
    argument: RuntimeArgument,
    parameter_types: Iterator[ValueType],
    values: list[int],
    spans: list[TensorSpan | None],
) -> None:
    """Encode a host's descriptor as the arguments that Triton passes in its place."""
    base, *rest = adapter.expand_descriptor(argument.value)
    address, span = find_span(memory, argument.name, base, next(parameter_types))
    values.append(address)
    values += [encode_value(value, next(parameter_types).element) for value in rest]
    spans += [span, *[None] * len(rest)]


def encode_value(value: Any, element: str) -> int:
    if element[0] == "i" or element.startswith("ptr<"):
        return int(value) & _UINT64_MASK
    if element not in ("f16", "bf16", "f32", "f64"):
        raise UncheckableKernel(f"an argument of type {element}")
    return encode_number(float(value), element)


def address_of_bytes(packed: bytes) -> int:
    """Return the address of bytes, which must live as long as it is used."""
    return ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p).value or 0
