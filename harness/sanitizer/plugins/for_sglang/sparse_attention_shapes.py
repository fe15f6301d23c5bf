"""Operators of DeepSeek's sparse attention for dry runs: its indexer's scores, and what it selects.

A row selects its first tokens, as many as it may: places that a server could select, without the
scores that would decide. Places past a row's length are -1, as the kernels pad them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SHAPES: dict[str, Callable[..., Any]] = {}

# They write floats, or bytes of a cache, into tensors that they are given, and return nothing.
WRITING = (
    "jit:concat_mla_absorb_q.concat_mla_absorb_q",
    "jit:fused_store_index_k_cache.fused_store_index_k_cache",
    "jit:hadamard.hadamard_transform",
    "jit:dpsk_v4_main_q_indexer_rope_first_quant.forward",
    "jit:dpsk_v32_k_indexer_norm_rope.forward",
    "jit:dpsk_v32_k_indexer_norm_rope_store_p64.forward",
    "jit:dpsk_v4_topk_v2.topk_plan",
)


def register_shapes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        SHAPES.update(dict.fromkeys(names, function))
        return function

    return register


@register_shapes("jit:occupancy_cluster_probe.get_max_active_clusters")
def _count_active_clusters(size: int, occupancy: int) -> int:
    """Return how many clusters run at a time: a number that a kernel is compiled for."""
    processors: int = torch.cuda.get_device_properties(0).multi_processor_count
    return processors * occupancy // size


@register_shapes("flashinfer.norm.layernorm")
def _normalize(values: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    return torch.empty_like(values)


@register_shapes("deep_gemm.fp8_mqa_logits")
def _score_keys(queries: torch.Tensor, keys: Any, *args: Any, **options: Any) -> torch.Tensor:
    size = queries.shape[0], keys[0].shape[0]
    return torch.empty(size, dtype=torch.float32, device=queries.device)


@register_shapes("deep_gemm.fp8_paged_mqa_logits")
def _score_pages(
    queries: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor,
    schedule: torch.Tensor,
    longest: int,
    *args: Any,
    **options: Any,
) -> torch.Tensor:
    rows = queries.shape[0] * queries.shape[1]
    return torch.empty((rows, longest), dtype=torch.float32, device=queries.device)


@register_shapes("deep_gemm.get_paged_mqa_logits_metadata")
def _plan_pages(lengths: torch.Tensor, block: int, processors: int) -> torch.Tensor:
    return torch.zeros((processors + 1, 2), dtype=torch.int32, device=lengths.device)


def _select_first(lengths: torch.Tensor, count: int) -> torch.Tensor:
    places = torch.arange(count, dtype=torch.int32, device=lengths.device)
    return torch.where(places < lengths.view(-1, 1), places, -1)


@register_shapes("sgl_kernel.fast_topk_v2")
def _select_places(
    scores: torch.Tensor, lengths: torch.Tensor, topk: int, *args: Any, **options: Any
) -> torch.Tensor:
    return _select_first(lengths, topk)


@register_shapes("sgl_kernel.fast_topk_transform_ragged_fused")
def _select_behind_offsets(
    score: torch.Tensor,
    lengths: torch.Tensor,
    topk_indices_offset: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    places = _select_first(lengths, topk)
    return torch.where(places < 0, places, places + topk_indices_offset.view(-1, 1))


@register_shapes("jit:dpsk_v4_topk_v2.topk_transform_ragged")
def _write_places_behind_offsets(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    offsets: torch.Tensor,
    out: torch.Tensor,
) -> None:
    out.copy_(_select_behind_offsets(scores, lengths, offsets, out.shape[1]))


@register_shapes("sgl_kernel.fast_topk_transform_fused")
def _select_slots(
    score: torch.Tensor,
    lengths: torch.Tensor,
    page_table_size_1: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return slots: a row's request is the one in whose queries it lies."""
    places = _select_first(lengths, topk)
    rows = torch.arange(len(places), dtype=torch.int32, device=places.device)
    if len(page_table_size_1) != len(places):
        rows = torch.searchsorted(cu_seqlens_q[1:].contiguous(), rows, right=True)
        rows = rows.clamp(max=len(page_table_size_1) - 1)
    slots = page_table_size_1[rows.unsqueeze(1), places.clamp(min=0).long()]
    return torch.where(places < 0, places, slots)


@register_shapes("jit:dpsk_v4_topk_v2.topk_transform_paged")
def _write_slots(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor | None,
    out: torch.Tensor,
    page_size: int,
    *args: Any,
) -> None:
    places = _select_first(lengths, out.shape[1])
    slots = places
    if pages is not None:
        firsts = pages.gather(1, (places.clamp(min=0) // page_size).long())
        slots = firsts * page_size + places % page_size
    out.copy_(torch.where(places < 0, places, slots))


@register_shapes("flash_mla.flash_mla_sparse_fwd")
def _attend_to_selected(
    queries: torch.Tensor,
    keys: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    width: int = 512,
    *args: Any,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Return the output, the largest logits, and the sums' logarithms."""
    output = torch.empty((*queries.shape[:-1], width), dtype=torch.bfloat16, device=queries.device)
    sums = torch.empty(queries.shape[:-1], dtype=torch.float32, device=queries.device)
    return output, sums, torch.empty_like(sums)
