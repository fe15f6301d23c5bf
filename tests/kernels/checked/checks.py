"""A checked session on this CPU, and numbers to give a kernel in it."""

from __future__ import annotations

from typing import Any

import torch

from harness import checking


def check() -> Any:
    return checking.checked("cpu")


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32)
