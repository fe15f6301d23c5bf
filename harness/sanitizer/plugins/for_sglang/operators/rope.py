"""Rotary position embedding, in place: GPT-NeoX' halves or GPT-J's pairs of each head."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.sanitizer.device.stand_ins import JitBuild, stand_in
from harness.sanitizer.plugins.for_sglang.formulas import find_angles, rotate_heads, store_rows

_CSRC = "sglang/kernels/jit/csrc/elementwise/rope.cuh"


def _rotate_in_place(
    heads: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    is_neox: bool,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Rotate the first elements of each head of [tokens, heads, size], in this arithmetic."""
    rotated = heads[..., : cos_sin.shape[-1]]
    angles = find_angles(cos_sin.to(dtype), positions)
    rotated.copy_(rotate_heads(rotated.to(dtype), *angles, is_neox))


@stand_in(
    "jit:fused_rope.run_rope",
    source=_CSRC,
)
def run_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    build: JitBuild,
) -> None:
    is_neox = build.marker[1] == "true"
    _rotate_in_place(q, cos_sin, positions, is_neox)
    _rotate_in_place(k, cos_sin, positions, is_neox)


@stand_in("jit:fused_rope.run_rope_store", source=_CSRC)
def run_rope_store(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    build: JitBuild,
) -> None:
    run_rope(q, k, cos_sin, positions, build)
    store_rows(k, k_cache, slots)
    store_rows(v, v_cache, slots)


@stand_in(
    "jit:rotary_embedding.rotary_embedding",
    "sgl_kernel.rotary_embedding",
    source="sglang/kernels/jit/csrc/elementwise/pos_enc.cuh",
)
def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin: torch.Tensor,
    is_neox: bool = True,
) -> None:
    for heads in (query, key):
        if heads is not None:
            view = heads if heads.dim() == 3 else heads.unflatten(-1, (-1, head_size))
            dtype = heads.dtype if heads.dtype == cos_sin.dtype else torch.float32
            _rotate_in_place(view, cos_sin, positions.flatten(), is_neox, dtype)


@dataclass(frozen=True)
class KvBufferArguments:
    """Where a rotation stores keys and values: `sgl_kernel.FusedSetKVBufferArg`, a plain value."""

    value: torch.Tensor
    k_buffer: torch.Tensor
    v_buffer: torch.Tensor
    k_scale: float | None
    v_scale: float | None
    cache_loc: torch.Tensor


stand_in("sgl_kernel.FusedSetKVBufferArg", source="sgl-kernel/python/sgl_kernel/elementwise.py")(
    KvBufferArguments
)


@stand_in(
    "jit:apply_rope_pos_ids_cos_sin_cache.apply_rope_pos_ids_cos_sin_cache",
    source="sglang 0.5.9: jit_kernel/rope.py",
)
def apply_rope_pos_ids_cos_sin_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    interleave: bool,
    enable_pdl: bool,
    v: torch.Tensor | None,
    k_buffer: torch.Tensor | None,
    v_buffer: torch.Tensor | None,
    slots: torch.Tensor | None,
) -> None:
    """Rotate into `q_rope` and `k_rope`, and store the keys and values if buffers are given."""
    for source, target in ((q, q_rope), (k, k_rope)):
        target.copy_(source)
        _rotate_in_place(target, cos_sin, positions, not interleave)
    if k_buffer is not None and v_buffer is not None and v is not None and slots is not None:
        store_rows(k_rope, k_buffer, slots)
        store_rows(v, v_buffer, slots)
