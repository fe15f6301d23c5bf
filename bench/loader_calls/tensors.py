"""Small tensors for the calls, and the table of the calls by the loader that each launches."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

CALLS: dict[str, Callable[[], Any]] = {}
_KERNELS = "sglang.kernels."
_Call = Callable[[], Any]


def register_loader(loader: str) -> Callable[[_Call], _Call]:
    """Register a call by the loader, below `sglang.kernels`, whose kernels it launches."""

    def register(call: _Call) -> _Call:
        CALLS[f"{_KERNELS}{loader}"] = call
        return call

    return register


def find_function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{_KERNELS}{module}"), name)


def draw_normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator).to(dtype).to("cuda")


def draw_floats(*shape: int) -> torch.Tensor:
    return draw_normal(*shape, dtype=torch.float32)


def make_empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def make_zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


def make_int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def make_int64(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cuda")


def draw_rotations(rows: int = 32, width: int = 64) -> torch.Tensor:
    """Return complex numbers of length one."""
    generator = torch.Generator().manual_seed(5)
    angles = torch.randn(rows, width // 2, generator=generator)
    return torch.polar(torch.ones_like(angles), angles).to("cuda")


def collect_addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
    addresses = [tensor.data_ptr() for tensor in tensors]
    return torch.tensor(addresses, dtype=torch.uint64).to("cuda")
