"""Tensors without ownership, with which graph runners refer to memory of a graph's pool."""

from __future__ import annotations

import torch

from harness.sanitizer.device import memory
from harness.sanitizer.device.stand_ins import stand_in


@stand_in(
    "sgl_kernel.weak_ref_tensor",
    source="sgl-kernel/csrc/memory/weak_ref_tensor.cpp",
)
def weak_ref_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return memory.make_unowned_alias(tensor)
