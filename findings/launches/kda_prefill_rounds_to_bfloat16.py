"""Kimi Linear on one of eight ranks: a chunk of 8,192 tokens of 4 heads of 128, in bfloat16."""

import torch
from sglang.kernels.ops.attention.fla.chunk_intra import chunk_kda_fwd_intra

SHAPE = 1, 8192, 4, 128
Q, K, V = (torch.randn(*SHAPE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
GATES = -torch.rand(*SHAPE, device="cuda").view(1, 128, 64, 4, 128).cumsum(2).view(*SHAPE)
BETA = torch.ones(*SHAPE[:3], device="cuda")
LAUNCHES = {
    "a chunk of 8,192 tokens": lambda: chunk_kda_fwd_intra(
        Q, K, V, GATES, BETA, 1.0, fuse_recompute=True, fuse_diagonal=True
    )
}
