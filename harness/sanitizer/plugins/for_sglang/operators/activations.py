"""Activations: gated ones, whose input holds the gate and then the factor, and unary ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.sanitizer.device.stand_ins import stand_in, write_result
from harness.sanitizer.plugins.for_sglang.formulas import ACTIVATIONS, gate_rows

_CSRC = "sglang/kernels/jit/csrc/elementwise/activation.cuh"
_PACKAGES = "sgl-kernel/python/sgl_kernel/elementwise.py"


def _make_gate(activation: str) -> Callable[..., torch.Tensor]:
    def gate(input: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return write_result(gate_rows(input, activation).to(input.dtype), out)

    return gate


stand_in("sgl_kernel.silu_and_mul", "flashinfer.activation.silu_and_mul", source=_PACKAGES)(
    _make_gate("silu")
)
stand_in("sgl_kernel.gelu_and_mul", source=_PACKAGES)(_make_gate("gelu"))
stand_in("sgl_kernel.gelu_tanh_and_mul", source=_PACKAGES)(_make_gate("gelu_tanh"))


@stand_in("jit:activation.run_activation", source=_CSRC)
def run_activation(input: torch.Tensor, out: torch.Tensor, name: str) -> None:
    out.copy_(gate_rows(input, name))


@stand_in("jit:activation.run_activation_filtered", source=_CSRC)
def run_activation_filtered(
    input: torch.Tensor, out: torch.Tensor, expert_ids: torch.Tensor, expert_step: int, name: str
) -> None:
    """Compute the rows whose expert is not -1; an id stands for `expert_step` rows."""
    rows = torch.arange(input.shape[0], device=input.device) // expert_step
    written = expert_ids[rows] != -1
    out[written] = gate_rows(input[written], name).to(out.dtype)


@stand_in("jit:activation.run_unary_activation", source=_CSRC)
def run_unary_activation(input: torch.Tensor, out: torch.Tensor, name: str) -> None:
    out.copy_(ACTIVATIONS[name](input.float()))
