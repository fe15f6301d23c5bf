"""Checked sessions on this CPU, launches in one, and tensors for them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from harness import checking
from harness.checking import Check


def check_on_cpu() -> AbstractContextManager[Check]:
    return checking.checked("cpu")


def make_numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32)


def launch_checked(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    with check_on_cpu():
        kernel[grid](*args, **constants)
