"""A sketch of tensors, by which two runs on two versions of SGLang are compared.

Both runs draw the same inputs, so a change without an effect gives the same bits. Where bits
differ, the projections say by how much: each is the sum of all elements with random signs, so the
mean square of the differences of sixteen of them estimates the squared length of the difference.
Example: one row of a thousand that is off by its own size moves every projection.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence

import torch

from harness.store.zoo.values import AnswerSketch

PROJECTIONS = 16


def make_sketch(tensors: Sequence[torch.Tensor], tolerance: float) -> AnswerSketch:
    """Sketch tensors; of integers only the digest counts."""
    digest = hashlib.sha256()
    is_exact, largest, count = True, 0.0, 0
    projections = torch.zeros(PROJECTIONS, dtype=torch.float64)
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
        if not values.is_floating_point() or not values.numel():
            continue
        is_exact = False
        wide = values.reshape(-1).double().nan_to_num(nan=math.pi, posinf=1e6, neginf=-1e6)
        largest, count = max(largest, float(wide.abs().max())), count + wide.numel()
        generator = torch.Generator().manual_seed(zlib.crc32(str(count).encode()))
        for number in range(PROJECTIONS):
            signs = torch.randint(0, 2, wide.shape, generator=generator) * 2 - 1
            projections[number] += (wide * signs).sum()
    return AnswerSketch(
        digest.hexdigest()[:16], [] if is_exact else projections.tolist(), largest, count, tolerance
    )
