"""Tensors whose address range is huge and whose memory is only what is touched."""

from __future__ import annotations

import gc
import math
import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

import torch

# The kernel hands out pages when they are touched, and never asks whether all would fit.
_NORESERVE = 0x4000
_LARGE = 1 << 30  # bytes: what is smaller finds its room
_PATIENCE = 10.0  # seconds: an example may take a minute


def virtual(
    shape: Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
) -> torch.Tensor:
    """Zeros of this shape. On a GPU it is real memory: there is no other there."""
    size = math.prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu":
        wait_for_room(size, torch.cuda)
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return untouched(size).view(dtype).view(tuple(shape))


def untouched(size: int) -> torch.Tensor:
    """So many bytes of zeros, none of them in memory yet."""
    if size == 0:
        return torch.zeros(0, dtype=torch.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)


def wait_for_room(size: int, cuda: Any, patience: float = _PATIENCE) -> None:
    """Until the device has so much to give, or for so long: other processes' tests end.

    Two that wait may see the same room, and one of them will find it taken: that is told as it
    always was.
    """
    if size < _LARGE:
        return
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        ours = cuda.memory_reserved() - cuda.memory_allocated()
        if cuda.mem_get_info()[0] + ours >= size + _LARGE:
            return
        gc.collect()  # what our own earlier examples left in circles
        cuda.empty_cache()
        time.sleep(0.05 + os.getpid() % 97 / 1000)  # not all at once, and nothing is drawn here
