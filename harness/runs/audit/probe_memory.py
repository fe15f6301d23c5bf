"""Virtual memory for a launch that runs one program: all addresses, and few pages.

A tensor lies in the middle of a terabyte of addresses, so that an overflowed offset stays inside
and is reported as an overflow. An integer tensor is a small file, mapped repeatedly: 2**31 int32
of 0 and 7 in turn take one tile of 4 MiB, mapped 2,048 times.
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

ADDRESS_SPAN = 1 << 39  # bytes before the start of a tensor and behind it
_TILE_BYTES = 1 << 22  # larger for later tensors, because Linux limits the number of maps
_BLOCK_BYTES = 1 << 16
_MAP_FIXED = 0x10


def make_tensor(argument: LaunchArgument) -> torch.Tensor:
    """Make an argument's tensor: all addresses, filled with its numbers."""
    if argument.holds:
        return make_patterned_tensor(argument)
    return reserve_memory(argument.name, TORCH_TYPES[argument.kind[1:]])


def make_fresh_tensor(argument: LaunchArgument) -> torch.Tensor:
    """Make an argument's tensor without the writes of earlier launches."""
    tensor = make_tensor(argument)
    start = tensor.data_ptr() - ADDRESS_SPAN
    if _load_libc().madvise(start, 2 * ADDRESS_SPAN, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "the memory cannot be reset")
    return tensor


@cache
def reserve_memory(name: str, dtype: torch.dtype) -> torch.Tensor:
    middle = ADDRESS_SPAN // dtype.itemsize
    return virtual_zeros((2 * middle,), dtype)[middle:]


@dataclass(slots=True)
class _MemoryTile:
    """A file that is mapped into a tensor many times."""

    file: int
    size: int
    content: bytes = b""
    filled: int = 0  # written bytes of the file
    mapped: int = 0  # mapped bytes of the tensor


_TILES_BY_ADDRESS: dict[int, _MemoryTile] = {}  # by the start of the tensor


def make_patterned_tensor(argument: LaunchArgument) -> torch.Tensor:
    """Make a tensor of two alternating numbers, as far as the launch may reach."""
    assert argument.holds is not None
    dtype = TORCH_TYPES[argument.kind[1:]]
    pair = torch.tensor([clamp_to_dtype(number, dtype) for number in argument.holds], dtype=dtype)
    content = pair.view(torch.uint8).numpy().tobytes()
    tensor = reserve_memory(argument.name, dtype)
    start = tensor.data_ptr()
    if start not in _TILES_BY_ADDRESS:
        size = _TILE_BYTES << len(_TILES_BY_ADDRESS) // 6
        _TILES_BY_ADDRESS[start] = _MemoryTile(os.memfd_create("unfix"), size)
        os.truncate(_TILES_BY_ADDRESS[start].file, size)
    tile = _TILES_BY_ADDRESS[start]
    elements = min(argument.elements or INT32_ELEMENTS, INT32_ELEMENTS)
    blocks = -(-elements * dtype.itemsize // _BLOCK_BYTES)
    while tile.mapped < blocks * _BLOCK_BYTES:
        _map_file(start + tile.mapped, tile.size, tile.file)
        tile.mapped += tile.size
    if content != tile.content:
        blocks = max(blocks, tile.filled // _BLOCK_BYTES)
        tile.content, tile.filled = content, 0
    missing = min(blocks, tile.size // _BLOCK_BYTES) - tile.filled // _BLOCK_BYTES
    if missing > 0:
        block = content * (_BLOCK_BYTES // len(content))
        tile.filled += os.pwritev(tile.file, [block] * missing, tile.filled)
    return tensor


@cache
def _load_libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _map_file(address: int, size: int, file: int) -> None:
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    if _load_libc().mmap(address, size, access, flags, file, 0) != address:
        raise OSError(ctypes.get_errno(), "the memory cannot be mapped")
