"""RMS norms, plain and of Gemma (whose weight is one less than the factor)."""

from __future__ import annotations

from typing import Any

import torch

from harness.sanitizer.device.stand_ins import JitBuild, stand_in, write_result
from harness.sanitizer.plugins.for_sglang.formulas import normalize_rows

_SOURCE = "sgl-kernel/python/sgl_kernel/elementwise.py"
_CSRC = "sglang/kernels/jit/csrc/elementwise"


def _register_package_norms(prefix: str, offset: float) -> None:
    """Register both norms that each package has, of rows and of sums."""

    @stand_in(f"sgl_kernel.{prefix}rmsnorm", f"flashinfer.norm.{prefix}rmsnorm", source=_SOURCE)
    def rmsnorm(
        input: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        out: torch.Tensor | None = None,
        enable_pdl: Any = None,
    ) -> torch.Tensor:
        return write_result(normalize_rows(input, weight, eps, offset).to(input.dtype), out)

    name = f"{prefix}fused_add_rmsnorm"

    @stand_in(f"sgl_kernel.{name}", f"flashinfer.norm.{name}", source=_SOURCE)
    def fused_add_rmsnorm(
        input: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        enable_pdl: Any = None,
    ) -> None:
        """Add the input to the residual, and write the norm of the exact sum to the input."""
        exact = residual.float() + input.float()
        residual.copy_(exact)
        input.copy_(normalize_rows(exact, weight, eps, offset))


_register_package_norms("", 0.0)
_register_package_norms("gemma_", 1.0)


@stand_in("jit:fused_add_rmsnorm.fused_add_rmsnorm", source=f"{_CSRC}/fused_add_rmsnorm.cuh")
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


@stand_in("jit:rmsnorm.rmsnorm", source=f"{_CSRC}/rmsnorm.cuh")
def jit_rmsnorm(input: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float) -> None:
    out.copy_(normalize_rows(input, weight, eps))


@stand_in("jit:qknorm.qknorm", source=f"{_CSRC}/qknorm.cuh")
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
