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

from harness.audit.findings import Argument
from harness.audit.trials import NARROW, TYPES, fitting
from harness.checking import virtual

REACH = 1 << 39  # bytes on each side of where a tensor begins: all that is right, or wraps
_TILE = 1 << 22  # of the first tensors of numbers; of later ones more, or Linux runs out of maps
_BLOCK = 1 << 16


def roomy(one: Argument) -> torch.Tensor:
    """An argument's memory: all that there can be, with the numbers that it holds."""
    return repeated(one) if one.holds else room(one.name, TYPES[one.kind[1:]])


def afresh(one: Argument) -> torch.Tensor:
    """The same, and nothing there is left of what launches before it wrote."""
    made = roomy(one)
    if _libc().madvise(made.data_ptr() - REACH, 2 * REACH, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "memory cannot be put back")
    return made


@cache
def room(name: str, kind: torch.dtype) -> torch.Tensor:
    middle = REACH // kind.itemsize
    return virtual((2 * middle,), kind)[middle:]


@dataclass(slots=True)
class _Tile:
    """A piece of memory that stands in a tensor many times."""

    file: int
    size: int
    content: bytes = b""
    filled: int = 0
    mapped: int = 0  # bytes of the tensor


_TILES: dict[int, _Tile] = {}  # by where a tensor begins


def repeated(one: Argument) -> torch.Tensor:
    """Two numbers in turn, over as much of the tensor as the launch may come to."""
    assert one.holds is not None
    kind = TYPES[one.kind[1:]]
    pair = torch.tensor([fitting(number, kind) for number in one.holds], dtype=kind)
    content = pair.view(torch.uint8).numpy().tobytes()
    made = room(one.name, kind)
    start = made.data_ptr()
    if start not in _TILES:
        size = _TILE << len(_TILES) // 6
        _TILES[start] = _Tile(os.memfd_create("unfix"), size)
        os.truncate(_TILES[start].file, size)
    tile = _TILES[start]
    blocks = -(-min(one.elements or NARROW, NARROW) * kind.itemsize // _BLOCK)
    while tile.mapped < blocks * _BLOCK:
        _map(start + tile.mapped, tile.size, tile.file)
        tile.mapped += tile.size
    if content != tile.content:
        tile.content, before, tile.filled = content, tile.filled, 0
        blocks = max(blocks, before // _BLOCK)
    more = min(blocks, tile.size // _BLOCK) - tile.filled // _BLOCK
    if more > 0:
        block = content * (_BLOCK // len(content))
        tile.filled += os.pwritev(tile.file, [block] * more, tile.filled)
    return made


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _map(address: int, size: int, file: int) -> None:
    flags = mmap.MAP_PRIVATE | 0x10  # at this very address
    if _libc().mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0) != address:
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
