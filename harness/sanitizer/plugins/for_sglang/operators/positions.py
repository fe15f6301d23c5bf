"""Positions of tokens, from the lengths of their sequences."""

from __future__ import annotations

import torch

from harness.sanitizer.device.stand_ins import stand_in


@stand_in(
    "jit:clamp_position.clamp_position",
    source="sglang/kernels/jit/csrc/elementwise/clamp_position.cuh",
)
def clamp_position(out: torch.Tensor, lengths: torch.Tensor) -> None:
    """Write each sequence's last position; an empty sequence's is 0."""
    out.copy_((lengths - 1).clamp(min=0))
