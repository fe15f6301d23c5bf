"""LongCat-Flash: 512 routed and 256 zero experts, 12 for a token, rows of 6,144."""

import torch
from sglang.kernels.ops.moe.ep_moe_kernels import zero_experts_compute_triton


def make_launch(tokens):
    hidden = torch.randn(tokens, 6144, device="cuda", dtype=torch.bfloat16)
    weights = torch.rand(tokens, 12, device="cuda")
    ids = torch.randint(0, 768, (tokens, 12), device="cuda", dtype=torch.int32)
    return lambda: zero_experts_compute_triton(ids, weights, 512, "identity", hidden)


LAUNCHES = {f"zero experts, {tokens} tokens": make_launch(tokens) for tokens in (64, 8192)}
