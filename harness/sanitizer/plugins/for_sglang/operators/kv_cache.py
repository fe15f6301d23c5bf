"""Writes of keys and values into a cache's slots, and copies between a GPU and its host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.sanitizer.device.stand_ins import stand_in
from harness.sanitizer.plugins.for_sglang.formulas import find_written_rows, store_rows

_SPLITS = (1, 2, 4)  # warps for a row; a pool has more slots


@stand_in("jit:kvcache.store_cache", source="sglang/kernels/jit/csrc/elementwise/kvcache.cuh")
def store_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    *numbers: int,
) -> None:
    """Store rows, but for those whose slot is the reserved one of padding.

    Until 0.5.20 the numbers begin with the warps for a row; then come the count of slots, from
    0.5.14 on, and the reserved slot, from 0.5.18 on.
    """
    limits = numbers[1:] if numbers and numbers[0] in _SPLITS else numbers
    size_limit, reserved = (*limits, *(0, -1)[len(limits) :])
    written = find_written_rows(indices, reserved)
    slots = indices[written]
    size_limit = size_limit or k_cache.shape[0]
    outside = (slots < 0) | (slots >= size_limit)
    if bool(outside.any()):
        raise IndexError(f"store_cache: slot {int(slots[outside][0])} of {size_limit} slots")
    store_rows(k[written], k_cache, slots)
    store_rows(v[written], v_cache, slots)


@stand_in(
    "jit:set_mla_kv_buffer.set_mla_kv_buffer",
    source="sglang/kernels/ops/kvcache/set_mla_kv_buffer.py",
)
def set_mla_kv_buffer(
    kv_buffer: torch.Tensor,
    loc: torch.Tensor,
    cache_k_nope: torch.Tensor,
    cache_k_rope: torch.Tensor,
    num_warps: int = 0,
    reserved_skip_index: int = 0,
) -> None:
    """Store rows of two parts side by side, but for those whose slot is the reserved one."""
    written = find_written_rows(loc, reserved_skip_index)
    rows = torch.cat([cache_k_nope[written], cache_k_rope[written]], dim=-1)
    store_rows(rows, kv_buffer, loc[written])


@stand_in("sgl_kernel.kvcacheio.transfer_kv_direct", source="sgl-kernel/csrc/kvcacheio/transfer.cu")
def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy whole pages of each layer, which begin at every `page_size`th index."""
    within = torch.arange(page_size)
    sources, targets = (
        (slots.cpu()[::page_size, None] + within).flatten() for slots in (src_indices, dst_indices)
    )
    for source, target in zip(src_layers, dst_layers, strict=True):
        rows = source[sources.to(source.device)]
        target[targets.to(target.device)] = rows.to(target.device)


@stand_in("sgl_kernel.kvcacheio.get_device_accessible_ptr", source="sgl-kernel/csrc/kvcacheio")
def get_device_accessible_ptr(tensor: torch.Tensor, device: int) -> int:
    return int(tensor.data_ptr())
