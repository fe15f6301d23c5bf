"""A byte for each byte of a storage of any size: 1 where it is uninitialized.

Invariant: only what a kernel or an operator touches takes memory. A large shadow begins as one file
of ones, mapped again and again; a byte that is written gets a page of its own, and a long range of
zeros is mapped anew. Example: the shadow of a scratch of 34 GB takes 16 MB, and a page for each one
that a store touches.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable

import torch

from harness.sanitizer.device.memory import map_zero_bytes

_SMALL = 1 << 20  # bytes up to which a shadow is plain memory
_FILE_SIZE = 1 << 24
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # Linux
_FAILED = ctypes.c_void_p(-1).value


def make_shadow(size: int) -> torch.Tensor:
    """Make the shadow of a storage in which nothing is written."""
    if size <= _SMALL:
        return torch.ones(size, dtype=torch.uint8)
    shadow = map_zero_bytes(size)
    start = shadow.data_ptr()  # of a mapping, whose last page is whole
    for offset in range(0, size, _FILE_SIZE):
        length = min(_FILE_SIZE, size - offset)
        _map_fixed(start + offset, length, mmap.MAP_PRIVATE, _open_ones())
    return shadow


def clear_range(shadow: torch.Tensor, first: int, end: int) -> None:
    """Mark the bytes from `first` to before `end` as written."""
    start, page = shadow.data_ptr(), mmap.PAGESIZE
    if end - first <= _SMALL or shadow.numel() <= _SMALL:
        ctypes.memset(start + first, 0, end - first)
        return
    inner_first, inner_end = -(-first // page) * page, end // page * page
    ctypes.memset(start + first, 0, inner_first - first)
    ctypes.memset(start + inner_end, 0, end - inner_end)
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    _map_fixed(start + inner_first, inner_end - inner_first, anonymous, -1)


@functools.cache
def _open_ones() -> int:
    """Return the descriptor of a file of ones, which this process and its forks share."""
    file = os.memfd_create("ones")
    os.write(file, b"\1" * _FILE_SIZE)
    return file


def _map_fixed(address: int, length: int, flags: int, file: int) -> None:
    """Map memory over an address of a mapping of ours, which frees it when it is freed."""
    mapped = _load_mmap()(
        address,
        length,
        mmap.PROT_READ | mmap.PROT_WRITE,
        flags | _MAP_FIXED | _MAP_NORESERVE,
        file,
        0,
    )
    if mapped == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {length:,} bytes: {os.strerror(number)}")


@functools.cache
def _load_mmap() -> Callable[..., int | None]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_int64,
    ]
    return function
