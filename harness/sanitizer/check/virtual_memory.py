"""Tensors with a huge address range, of which only the touched pages take memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from harness.sanitizer.check import gpu_admission
from harness.sanitizer.device.installation import is_installed
from harness.sanitizer.device.memory import map_zero_bytes


def virtual_zeros(
    shape: Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
) -> torch.Tensor:
    """Return zeros of this shape; on a GPU they take all their memory."""
    size = math.prod(shape) * dtype.itemsize
    if torch.device(device).type == "cpu":
        return map_zero_bytes(size).view(dtype).view(tuple(shape))
    if not is_installed():  # the virtual GPU maps its memory as well
        gpu_admission.wait_for_memory(size, torch.cuda)
    return torch.zeros(tuple(shape), dtype=dtype, device=device)
