"""Activations: gated ones, whose input holds the gate and then the factor, and unary ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from harness.sanitizer.device.stand_ins import stand_in, write_result

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda values: functional.gelu(values, approximate="tanh"),
    "relu2": lambda values: functional.relu(values).square(),
}
_CSRC = "sglang/kernels/jit/csrc/elementwise/activation.cuh"


def activate_and_multiply(values: torch.Tensor, name: str) -> torch.Tensor:
    """Activate the first half of each row, in float32, and multiply it by the second."""
    gate, factor = values.float().chunk(2, dim=-1)
    return (_ACTIVATIONS[name](gate) * factor).to(values.dtype)


@stand_in(
    "sgl_kernel.silu_and_mul",
    "flashinfer.activation.silu_and_mul",
    source="sgl-kernel/python/sgl_kernel/elementwise.py: silu_and_mul",
)
def silu_and_mul(input: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return write_result(activate_and_multiply(input, "silu"), out)


@stand_in(
    "sgl_kernel.gelu_and_mul",
    source="sgl-kernel/python/sgl_kernel/elementwise.py: gelu_and_mul",
)
def gelu_and_mul(input: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return write_result(activate_and_multiply(input, "gelu"), out)


@stand_in(
    "sgl_kernel.gelu_tanh_and_mul",
    source="sgl-kernel/python/sgl_kernel/elementwise.py: gelu_tanh_and_mul",
)
def gelu_tanh_and_mul(input: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return write_result(activate_and_multiply(input, "gelu_tanh"), out)


@stand_in(
    "jit:activation.run_activation",
    source=_CSRC,
)
def run_activation(input: torch.Tensor, out: torch.Tensor, name: str) -> None:
    out.copy_(activate_and_multiply(input, name))


@stand_in("jit:activation.run_activation_filtered", source=_CSRC)
def run_activation_filtered(
    input: torch.Tensor, out: torch.Tensor, expert_ids: torch.Tensor, expert_step: int, name: str
) -> None:
    """Compute the rows whose expert is not -1; an id stands for `expert_step` rows."""
    rows = torch.arange(input.shape[0], device=input.device) // expert_step
    written = expert_ids[rows] != -1
    out[written] = activate_and_multiply(input[written], name)


@stand_in("jit:activation.run_unary_activation", source=_CSRC)
def run_unary_activation(input: torch.Tensor, out: torch.Tensor, name: str) -> None:
    out.copy_(_ACTIVATIONS[name](input.float()))
