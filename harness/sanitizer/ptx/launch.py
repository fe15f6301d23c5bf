"""One launch of a CUDA kernel as values: what its host code asks for, and the memory it uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.sanitizer.violations.named_memory import NamedMemory

Dimensions = tuple[int, int, int]  # x, y, z


@dataclass(frozen=True, slots=True)
class Allocation:
    """The memory of one tensor, from its first byte to the end of its last element."""

    name: str  # the parameter of the host function that it was given for, such as 'k_cache'
    base: int  # address of its first byte
    size: int  # bytes
    dtype: str = ""  # as torch calls it: 'bfloat16'
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()  # in elements
    storage_base: int = 0  # of the storage that it is a view of; 0 for its own
    storage_size: int = 0
    is_pageable: bool = False  # the host's own memory, which no kernel can reach: its size is 0
    uninitialized: int = 0  # the address of a byte for each of its bytes: 1 where uninitialized
    # Masks of the bytes that a block may read and write; None allows all.
    allowed_reads: Callable[[Dimensions], Any] | None = None
    allowed_writes: Callable[[Dimensions], Any] | None = None

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def memory(self) -> NamedMemory:
        itemsize = _measure_item(self.dtype)
        return NamedMemory(self.name, self.base, self.end, itemsize, self.shape, self.dtype)

    def __str__(self) -> str:
        return str(self.memory)


@dataclass(frozen=True, slots=True)
class ExecutorChecks:
    """What is checked besides bounds, alignment, barriers and assertions."""

    overflow: bool = True
    uninitialized: bool = True
    races: bool = True


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A kernel with its grid, its parameters and the tensors of the call that launches it."""

    entry: str  # the mangled name
    name: str  # for people: 'store_kvcache<1024, true>'
    grid: Dimensions
    block: Dimensions
    shared_bytes: int  # dynamic shared memory
    parameters: bytes  # each at the offset that the kernel's PTX gives it
    allocations: tuple[Allocation, ...]  # of the call's tensors
    # Any other living allocation by an address in it: workspaces, targets of a table of pointers.
    find_allocation: Callable[[int], Allocation | None]
    cluster: Dimensions = (1, 1, 1)
    max_shared_bytes: int = 0  # of dynamic shared memory, by cudaFuncSetAttribute; 0: never set
    chosen_blocks: tuple[Dimensions, ...] = ()  # the only ones that run; all without any


def _measure_item(dtype: str) -> int:
    """Return the bytes of an element, from its type's name: 2 for `bfloat16`."""
    digits = re.search(r"\d+", dtype)
    return max(1, int(digits[0]) // 8) if digits else 1
