"""A release's own kernels, at the sizes of a server of an 8-billion model on one GPU.

They are launched by SGLang's own functions, which choose blocks, warps and stages. The imports are
those of SGLang 0.5.23; the case `compiled_checks` uses this module.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton.language as tl

DEVICE = "cuda"


def make_floats(*shape: int, kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.float32).to(kind)


def make_counts(*parts: int) -> torch.Tensor:
    """Return the offsets of the parts, and the end of the last one."""
    return torch.tensor([0, *parts], device=DEVICE, dtype=torch.int32).cumsum(0).to(torch.int32)


def make_slots(count: int, pool: int) -> torch.Tensor:
    return torch.tensor(random.Random(0).sample(range(pool), count), device=DEVICE)


def launch_decode(batch: int, length: int, heads: int) -> Callable[[], Any]:
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    pool, splits = batch * length + 64, 8
    query, result = make_floats(batch, 32, 128), make_floats(batch, 32, 128)
    keys, values = make_floats(pool, heads, 128), make_floats(pool, heads, 128)
    parts = [
        torch.empty(*shape, device=DEVICE, dtype=torch.float32)
        for shape in ((batch, 32, splits, 128), (batch, 32, splits))
    ]
    many = torch.full((batch,), splits, device=DEVICE, dtype=torch.int32)
    places = make_counts(*[length] * batch), make_slots(batch * length, pool)
    return lambda: decode_attention_fwd(
        query, keys, values, result, *places, *parts, many, splits, 0.088, 1.0, 1.0
    )


def launch_extend() -> Callable[[], Any]:
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    pool, new = 4 * 2048 + 64, 4 * 1024
    query, result = make_floats(new, 32, 128), make_floats(new, 32, 128)
    keys, values = make_floats(new, 8, 128), make_floats(new, 8, 128)
    buffers = make_floats(pool, 8, 128), make_floats(pool, 8, 128)
    places = make_counts(*[1024] * 4), make_counts(*[2048] * 4), make_slots(4 * 2048, pool)
    return lambda: extend_attention_fwd(
        query, keys, values, result, *buffers, *places, None, True, None, 1024, 1.0, 1.0
    )


def make_expert_call() -> Callable[[], Any]:
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel

    tokens, top, many, block = 4096, 2, 8, 64
    tokens_in, weights = make_floats(tokens, 2048), make_floats(many, 2816, 2048)
    result = make_floats(tokens, top, 2816)
    share = torch.rand(tokens, top, device=DEVICE)
    chosen = torch.randint(0, many, (tokens, top), device=DEVICE, dtype=torch.int32)
    order = torch.randperm(tokens * top, device=DEVICE).to(torch.int32)
    whose = torch.arange(many, device=DEVICE, dtype=torch.int32)
    of_blocks = whose.repeat_interleave(tokens * top // many // block)
    padded = torch.tensor([tokens * top], device=DEVICE, dtype=torch.int32)
    sides = {"BLOCK_SIZE_M": block, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
    config = {**sides, "num_warps": 4, "num_stages": 3}
    return lambda: invoke_fused_moe_kernel(
        *(
            tokens_in,
            weights,
            None,
            result,
            None,
            None,
            None,
            share,
            chosen,
            order,
            of_blocks,
            padded,
        ),
        *(False, top, config, tl.bfloat16, False, False, False, False, False),
    )


def product_in_fp8() -> Callable[[], Any]:
    from sglang.kernels.ops.gemm.fp8_kernel import w8a8_block_fp8_matmul_triton

    kind = torch.float8_e4m3fn
    left, right = make_floats(2048, 4096, kind=kind), make_floats(4096, 4096, kind=kind)
    scales = (torch.rand(side, 32, device=DEVICE) for side in (2048, 32))
    operands = left, right, *scales
    return lambda: w8a8_block_fp8_matmul_triton(*operands, [128, 128], torch.bfloat16)


def launch_quantize() -> Callable[[], Any]:
    from sglang.kernels.ops.quantization.fp8_kernel import _per_token_group_quant_8bit_raw

    values = make_floats(8192, 4096)
    return lambda: _per_token_group_quant_8bit_raw(values, 128)


def launch_norm() -> Callable[[], Any]:
    from sglang.kernels.ops.layernorm.fused_rmsnorm import fused_dual_residual_rmsnorm

    values, residual = make_floats(8192, 4096), make_floats(8192, 4096)
    weights = make_floats(4096), make_floats(4096)
    return lambda: fused_dual_residual_rmsnorm(values, residual, *weights, 1e-6)


def launch_gate() -> Callable[[], Any]:
    from sglang.kernels.ops.activation.gelu_and_mul_triton import gelu_and_mul_triton

    values = make_floats(8192, 2 * 14336)
    return lambda: gelu_and_mul_triton(values)


def launch_merge() -> Callable[[], Any]:
    from sglang.kernels.ops.attention.merge_state import merge_state_triton

    states = [
        part
        for _ in range(2)
        for part in (make_floats(8192, 32, 128), make_floats(8192, 32, kind=torch.float32))
    ]
    return lambda: merge_state_triton(*states)


def launch_sum() -> Callable[[], Any]:
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import moe_sum_reduce_triton

    values, result = make_floats(4096, 8, 4096), make_floats(4096, 4096)
    return lambda: moe_sum_reduce_triton(values, result, 1.0)


def make_index_call() -> Callable[[], Any]:
    from sglang.kernels.ops.attention.kv_indices import create_flashinfer_kv_indices_triton

    batch, length = 256, 4096
    rows = torch.randint(0, 1 << 20, (batch, length), device=DEVICE, dtype=torch.int32)
    which, lengths = make_slots(batch, batch), torch.full((batch,), length, device=DEVICE)
    result = torch.empty(batch * length, device=DEVICE, dtype=torch.int32)
    begin = make_counts(*[length] * batch)
    kernel = create_flashinfer_kv_indices_triton
    return lambda: kernel[(batch,)](rows, which, lengths, begin, None, result, length)


def draft_indices() -> Callable[[], Any]:
    from sglang.kernels.ops.speculative.cache_locs import generate_draft_decode_kv_indices

    batch, length, steps, top = 64, 2048, 3, 4
    rows = torch.randint(0, 1 << 20, (batch, length + 64), device=DEVICE, dtype=torch.int32)
    which, lengths = make_slots(batch, batch), torch.full((batch,), length, device=DEVICE)
    width = batch * top * (length + 64)
    result = torch.empty(steps, width, device=DEVICE, dtype=torch.int32)
    begin = torch.zeros(steps, batch * top + 1, device=DEVICE, dtype=torch.int32)
    places = torch.full((batch * top,), length, device=DEVICE)
    rest = length + 64, width, batch * top + 1, 64, 4, 256, 1
    return lambda: generate_draft_decode_kv_indices[(steps, batch, top)](
        which, rows, lengths, result, begin, places, *rest
    )


MAKERS: dict[str, Callable[[], Callable[[], Any]]] = {
    "decode attention, 64 of 2,048": partial(launch_decode, 64, 2048, 8),
    "decode attention, a head each": partial(launch_decode, 16, 2048, 32),
    "extend attention, 4 of 1,024 on 2,048": launch_extend,
    "fused experts, 4,096 tokens": make_expert_call,
    "fp8 product in blocks": product_in_fp8,
    "quantized in groups": launch_quantize,
    "two norms of 8,192 x 4,096": launch_norm,
    "gated, 8,192 x 14,336": launch_gate,
    "merged states": launch_merge,
    "experts summed": launch_sum,
    "indices of a batch": make_index_call,
    "indices of a draft": draft_indices,
}
