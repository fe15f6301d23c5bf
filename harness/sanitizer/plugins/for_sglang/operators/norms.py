"""RMS norms, plain and of Gemma (whose weight is one less than the factor)."""

from __future__ import annotations

from typing import Any

import torch

from harness.sanitizer.device.stand_ins import JitBuild, stand_in, write_result


def normalize_rows(
    values: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0
) -> torch.Tensor:
    """Divide rows by their root mean square, in float32."""
    exact = values.float()
    scaled = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        scaled = scaled * (weight.float() + offset)
    return scaled.to(values.dtype)


def _add_and_normalize(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float
) -> None:
    # The norm is of the exact sum, which the residual holds rounded.
    exact = residual.float() + input.float()
    residual.copy_(exact)
    input.copy_(normalize_rows(exact, weight, eps, offset))


@stand_in(
    "sgl_kernel.rmsnorm",
    "flashinfer.norm.rmsnorm",
    source="sgl-kernel/python/sgl_kernel/elementwise.py: rmsnorm",
)
def rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: Any = None,
) -> torch.Tensor:
    return write_result(normalize_rows(input, weight, eps), out)


@stand_in(
    "sgl_kernel.gemma_rmsnorm",
    "flashinfer.norm.gemma_rmsnorm",
    source="sgl-kernel/python/sgl_kernel/elementwise.py: gemma_rmsnorm",
)
def gemma_rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: Any = None,
) -> torch.Tensor:
    return write_result(normalize_rows(input, weight, eps, offset=1.0), out)


@stand_in(
    "sgl_kernel.fused_add_rmsnorm",
    "flashinfer.norm.fused_add_rmsnorm",
    source="sgl-kernel/python/sgl_kernel/elementwise.py: fused_add_rmsnorm",
)
def fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: Any = None,
) -> None:
    """Add the input to the residual, and write the norm of the sum to the input."""
    _add_and_normalize(input, residual, weight, eps, offset=0.0)


@stand_in(
    "jit:fused_add_rmsnorm.fused_add_rmsnorm",
    source="sglang/kernels/jit/csrc/elementwise/fused_add_rmsnorm.cuh",
)
def jit_fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    build: JitBuild,
) -> None:
    """Add the input to the residual, and write the norm of the sum to the input.

    The sum is rounded before it is scaled. A module that casts first rounds what is scaled in place
    of it, before the weight.
    """
    exact = residual.float() + input.float()
    scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)
    residual.copy_(exact)
    if build.marker[1] == "true":
        scaled = (exact * scale).to(input.dtype).float() * weight.float()
    else:
        scaled = residual.float() * weight.float() * scale
    input.copy_(scaled)


@stand_in(
    "sgl_kernel.gemma_fused_add_rmsnorm",
    "flashinfer.norm.gemma_fused_add_rmsnorm",
    source="sgl-kernel/python/sgl_kernel/elementwise.py: gemma_fused_add_rmsnorm",
)
def gemma_fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: Any = None,
) -> None:
    _add_and_normalize(input, residual, weight, eps, offset=1.0)


@stand_in(
    "jit:rmsnorm.rmsnorm",
    source="sglang/kernels/jit/csrc/elementwise/rmsnorm.cuh",
)
def jit_rmsnorm(input: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float) -> None:
    out.copy_(normalize_rows(input, weight, eps))


@stand_in(
    "jit:qknorm.qknorm",
    source="sglang/kernels/jit/csrc/elementwise/qknorm.cuh",
)
def qknorm(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
) -> None:
    """Normalize each head of q and k in place."""
    q.copy_(normalize_rows(q, q_weight, eps))
    k.copy_(normalize_rows(k, k_weight, eps))
