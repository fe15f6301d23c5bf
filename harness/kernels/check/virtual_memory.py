"""Tensors with a huge address range, of which only the touched pages take memory."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch

from harness.kernels.check import gpu_admission

# Linux allocates pages at the first access, without checking that all would fit.
_NORESERVE = 0x4000


def virtual_zeros(
    shape: Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
) -> torch.Tensor:
    """Return zeros of this shape; on a GPU they take all their memory."""
    size = math.prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu":
        gpu_admission.wait_for_memory(size, torch.cuda)
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return map_zero_bytes(size).view(dtype).view(tuple(shape))


def map_zero_bytes(size: int) -> torch.Tensor:
    """Map bytes of zeros, none of them in memory yet."""
    if size == 0:
        return torch.zeros(0, dtype=torch.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)
