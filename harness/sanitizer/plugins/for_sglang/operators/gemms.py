"""Products of few rows, for which SGLang has kernels of its own."""

from __future__ import annotations

import torch

from harness.sanitizer.device.stand_ins import stand_in, write_result
from harness.sanitizer.plugins.for_sglang.formulas import multiply_rows


@stand_in(
    "jit:tiny_n_gemm.run",
    "jit:tiny_k_gemm.run",
    source="sglang/kernels/ops/gemm/tiny_gemm.py: tiny_gemm_bf16",
)
def tiny_gemm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """Write `x @ weight.T`, accumulated in float32."""
    out.copy_(multiply_rows(x, weight))


@stand_in("flashinfer.gemm.tinygemm_bf16", source="flashinfer/gemm: tinygemm_bf16")
def tiny_gemm_with_bias(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    use_pdl: bool = False,
) -> None:
    """Write `x @ weight.T + bias`."""
    out.copy_(multiply_rows(x, weight, bias))


@stand_in("flashinfer.bmm_fp8", "sgl_kernel.bmm_fp8", source="flashinfer/gemm: bmm_fp8")
def bmm_fp8(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    backend: str = "cublas",
) -> torch.Tensor:
    """Return the products of matrices of 8 bits, each operand with one scale."""
    product = (a.float() @ b.float()) * (a_scale * b_scale)
    return write_result(product.to(dtype), out)
