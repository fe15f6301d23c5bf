"""CUDA operators whose results have shapes alone: for dry runs, where no float has a value.

A stand-in of `operators` computes; these do not, so they are asked only in a dry run: for names
that no stand-in has, and for those whose stand-in takes long without large floats. Each is counted
like a stand-in: its launches are named and not checked.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.sanitizer.plugins.for_sglang import draft_tree_shapes, sparse_attention_shapes
from harness.sanitizer.plugins.for_sglang.sparse_attention_shapes import register_shapes

SHAPES = sparse_attention_shapes.SHAPES
SHAPES.update(draft_tree_shapes.SHAPES)

# They write floats into tensors that they are given, and return nothing.
_WRITING = (
    "jit:per_token_group_quant.per_token_group_quant",
    "jit:activation.run_activation_sorted_filtered",
    "jit:concat_mla_k.concat_mla_k",
    "sgl_kernel.concat_mla_k",
    "jit:activation.run_activation_filtered",
    "jit:fused_eh_norm.fused_eh_norm",
    "deep_gemm.fp8_gemm_nt",
    "deep_gemm.bf16_gemm_nt",
    "deep_gemm.m_grouped_fp8_gemm_nt_contiguous",
    "deep_gemm.m_grouped_bf16_gemm_nt_contiguous",
    "deep_gemm.fp8_m_grouped_gemm_nt_masked",
    "deep_gemm.m_grouped_bf16_gemm_nt_masked",
    "jit:per_token_quant_fp8.per_token_quant_fp8",
    "jit:per_tensor_quant_fp8.per_tensor_quant_fp8",
    "sgl_kernel.sgl_per_token_quant_fp8",
    "flashinfer.fused_moe.trtllm_fp8_block_scale_moe",
    "sgl_kernel.sgl_per_tensor_quant_fp8",
    "sgl_kernel.sgl_per_token_group_quant_8bit",
    "sgl_kernel.sgl_per_token_group_quant_fp8",
    "jit:set_mla_kv_buffer.set_mla_kv_buffer",
    *sparse_attention_shapes.WRITING,
)


@register_shapes(*_WRITING)
def _write(*args: Any, **options: Any) -> None:
    """Leave the outputs as they are."""


@register_shapes(
    "sgl_kernel.flash_attn.flash_attn_with_kvcache",
    "sgl_kernel.flash_attn.flash_attn_varlen_func",
)
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **options: Any
) -> torch.Tensor:
    """Return one row a query, as wide as a value."""
    wide = options.get("qv")
    width = v.shape[-1] if wide is None else wide.shape[-1]
    return torch.empty((*q.shape[:-1], width), dtype=q.dtype, device=q.device)


@register_shapes("sgl_kernel.flash_attn.get_scheduler_metadata")
def _plan_attention(batch_size: int, *args: Any, **options: Any) -> torch.Tensor:
    """Return a plan, which the attention alone reads."""
    return torch.zeros(
        4 * batch_size + 1, dtype=torch.int32, device=options["cache_seqlens"].device
    )


@register_shapes("flashinfer.gdn_prefill.chunk_gated_delta_rule")
def _scan_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **options: Any
) -> Any:
    """Return one row a token, as wide as a value, and the state behind the last one."""
    output = options.get("output")
    output = torch.empty_like(v) if output is None else output
    return (output, options["output_state"]) if options.get("output_final_state") else output


@register_shapes("sgl_kernel.fp8_blockwise_scaled_mm", "sgl_kernel.fp8_scaled_mm")
def _multiply(
    left: torch.Tensor,
    right: torch.Tensor,
    left_scale: Any = None,
    right_scale: Any = None,
    out_dtype: torch.dtype = torch.bfloat16,
    *args: Any,
    **options: Any,
) -> torch.Tensor:
    return torch.empty((left.shape[0], right.shape[1]), dtype=out_dtype, device=left.device)


@register_shapes("sgl_kernel.fast_topk")
def _choose_largest(values: torch.Tensor, topk: int, dim: int = -1) -> Any:
    return torch.topk(values, topk, dim=dim)
