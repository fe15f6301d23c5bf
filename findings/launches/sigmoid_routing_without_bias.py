"""Routing of 128 experts, 8 for a token, by models that have a bias, as DeepSeek-V3's have."""

import torch
from sglang.kernels.ops.moe.moe_fused_gate import moe_fused_gate

BIAS = torch.randn(128, device="cuda")
LOGITS = {tokens: torch.randn(tokens, 128, device="cuda") for tokens in (64, 8192)}
LAUNCHES = {
    f"sigmoid with a bias, {tokens} tokens": lambda logits=logits: moe_fused_gate(logits, BIAS, 8)
    for tokens, logits in LOGITS.items()
}
