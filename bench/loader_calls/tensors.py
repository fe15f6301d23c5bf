"""Small tensors for the calls, and the table of the calls by the loader that each launches."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from harness.sanitizer.device.cards import DEFAULT_CARD

CALLS: dict[str, LoaderCall] = {}
COMPARISONS: list[int] = []  # the elements that the outputs of the running call have had compared
_SIZES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FOUR_BITS = torch.tensor([*_SIZES, *(-size for size in _SIZES)])  # what the codes of e2m1 mean
_KERNELS = "sglang.kernels."
_Call = Callable[[], Any]


class LoaderCall(NamedTuple):
    """A call that launches kernels of a loader, its card, and whether races are looked for."""

    run: _Call
    card: str
    races: bool


def register_loader(
    loader: str, card: str = DEFAULT_CARD, races: bool = True
) -> Callable[[_Call], _Call]:
    """Register a call by the loader, below `sglang.kernels`, whose kernels it launches."""

    def register(call: _Call) -> _Call:
        CALLS[f"{_KERNELS}{loader}"] = LoaderCall(call, card, races)
        return call

    return register


def find_function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{_KERNELS}{module}"), name)


def draw_normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator).to(dtype).to("cuda")


def draw_floats(*shape: int) -> torch.Tensor:
    return draw_normal(*shape, dtype=torch.float32)


def draw_bytes(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


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


def compare_tensors(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.0) -> None:
    """Hold an output against what torch computes from the same inputs, by default exactly."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    COMPARISONS.append(found.numel())


def rotate_pairs(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate neighbours: (x, y) becomes (x cos - y sin, y cos + x sin)."""
    first, second = rows[..., 0::2], rows[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)


def norm_rows(rows: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Divide by the root of the mean square, in float32."""
    rows = rows.float()
    normed = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6)
    return normed if weight is None else normed * weight.float()
