"""The memory of a launch of which one program runs: room for all, and next to no pages.

Tensors lie in the middle of a terabyte of addresses, so that what wraps goes somewhere. One that
holds numbers is a small file, mapped as often as the launch comes to it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from harness.checking import virtual_zeros
from harness.runs.audit.findings import LaunchArgument
from harness.runs.audit.trial_launches import INT32_ELEMENTS, TORCH_TYPES, clamp_to_dtype

ADDRESS_SPAN = 1 << 39  # bytes on each side of where a tensor begins: all that is right, or wraps
_TILE_BYTES = (
    1 << 22
)  # of the first tensors of numbers; of later ones more, or Linux runs out of maps
_BLOCK_BYTES = 1 << 16


def make_tensor(argument: LaunchArgument) -> torch.Tensor:
    """An argument's memory: all that there can be, with the numbers that it holds."""
    return (
        make_patterned_tensor(argument)
        if argument.holds
        else reserve_memory(argument.name, TORCH_TYPES[argument.kind[1:]])
    )


def make_fresh_tensor(argument: LaunchArgument) -> torch.Tensor:
    """The same, and nothing there is left of what launches before it wrote."""
    made = make_tensor(argument)
    if _load_libc().madvise(made.data_ptr() - ADDRESS_SPAN, 2 * ADDRESS_SPAN, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "memory cannot be put back")
    return made


@cache
def reserve_memory(name: str, kind: torch.dtype) -> torch.Tensor:
    middle = ADDRESS_SPAN // kind.itemsize
    return virtual_zeros((2 * middle,), kind)[middle:]


@dataclass(slots=True)
class _MemoryTile:
    """A piece of memory that stands in a tensor many times."""

    file: int
    size: int
    content: bytes = b""
    filled: int = 0
    mapped: int = 0  # bytes of the tensor


_TILES_BY_ADDRESS: dict[int, _MemoryTile] = {}  # by where a tensor begins


def make_patterned_tensor(argument: LaunchArgument) -> torch.Tensor:
    """Two numbers in turn, over as much of the tensor as the launch may come to."""
    assert argument.holds is not None
    kind = TORCH_TYPES[argument.kind[1:]]
    pair = torch.tensor([clamp_to_dtype(number, kind) for number in argument.holds], dtype=kind)
    content = pair.view(torch.uint8).numpy().tobytes()
    made = reserve_memory(argument.name, kind)
    start = made.data_ptr()
    if start not in _TILES_BY_ADDRESS:
        size = _TILE_BYTES << len(_TILES_BY_ADDRESS) // 6
        _TILES_BY_ADDRESS[start] = _MemoryTile(os.memfd_create("unfix"), size)
        os.truncate(_TILES_BY_ADDRESS[start].file, size)
    tile = _TILES_BY_ADDRESS[start]
    blocks = -(
        -min(argument.elements or INT32_ELEMENTS, INT32_ELEMENTS) * kind.itemsize // _BLOCK_BYTES
    )
    while tile.mapped < blocks * _BLOCK_BYTES:
        _map_file(start + tile.mapped, tile.size, tile.file)
        tile.mapped += tile.size
    if content != tile.content:
        tile.content, before, tile.filled = content, tile.filled, 0
        blocks = max(blocks, before // _BLOCK_BYTES)
    more = min(blocks, tile.size // _BLOCK_BYTES) - tile.filled // _BLOCK_BYTES
    if more > 0:
        block = content * (_BLOCK_BYTES // len(content))
        tile.filled += os.pwritev(tile.file, [block] * more, tile.filled)
    return made


@cache
def _load_libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _map_file(address: int, size: int, file: int) -> None:
    flags = mmap.MAP_PRIVATE | 0x10  # at this very address
    if (
        _load_libc().mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
        != address
    ):
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
