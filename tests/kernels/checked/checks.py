"""Checked sessions on this CPU, launches in one, and tensors for them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from harness import checking
from harness.checking import Check


def check() -> AbstractContextManager[Check]:
    return checking.checked("cpu")


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32)


def launch_checked(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    with check():
        kernel[grid](*args, **constants)
