"""Prefill kernels with a chunk of 8,192 tokens: DeepSeek-V3, Qwen3-Next, Llama-3.1-8B with LoRA."""

from types import SimpleNamespace

import torch
from sglang.kernels.ops.attention.mla_qk_prep import concat_and_cast_mha_k_triton
from sglang.kernels.ops.attention.triton_gdn_fused_proj import (
    fused_qkv_split_gdn_prefill,
    fused_qkvzba_split_reshape_cat,
)
from sglang.kernels.ops.lora.dense.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward
from sglang.kernels.ops.lora.dense.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward

TOKENS, RANK, CHUNK = 8192, 16, 16
INTS = {"device": "cuda", "dtype": torch.int32}


def rand(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


BATCH = SimpleNamespace(
    max_len=CHUNK, num_segments=TOKENS // CHUNK, use_cuda_graph=False,
    seg_indptr=torch.arange(0, TOKENS + 1, CHUNK, **INTS),
    weight_indices=torch.zeros(TOKENS // CHUNK, **INTS), lora_ranks=torch.tensor([RANK], **INTS),
    scalings=torch.ones(1, device="cuda"), permutation=torch.arange(TOKENS, **INTS),
)  # fmt: skip
HIDDEN, SHRUNK, OUT = rand(TOKENS, 4096), rand(TOKENS, RANK), rand(TOKENS, 4096)
DOWN, UP = rand(1, RANK, 4096), rand(1, 4096, RANK)
SLICES = torch.tensor([0, 4096], **INTS)
KEYS, NOPE, ROPE = rand(TOKENS, 128, 192), rand(TOKENS, 128, 128), rand(TOKENS, 1, 64)
QKV, QKVZ, GATES = rand(TOKENS, 8192), rand(TOKENS, 12288), rand(TOKENS, 64)
LAUNCHES = {
    "`_chunked_lora_shrink_kernel`": lambda: chunked_sgmv_lora_shrink_forward(
        HIDDEN, DOWN, BATCH, 1
    ),
    "`_chunked_lora_expand_kernel`": lambda: chunked_sgmv_lora_expand_forward(
        SHRUNK, UP, BATCH, SLICES, 4096, OUT
    ),
    "`concat_and_cast_mha_k_kernel`": lambda: concat_and_cast_mha_k_triton(KEYS, NOPE, ROPE),
    "`fused_qkv_split_gdn_prefill_kernel`": lambda: fused_qkv_split_gdn_prefill(
        QKV, 16, 16, 32, 128, 128, 128
    ),
    "`fused_qkvzba_split_reshape_cat_kernel`": lambda: fused_qkvzba_split_reshape_cat(
        QKVZ, GATES, 16, 32, 128, 128
    ),
}
