"""ERNIE-4.5-21B: softmax routing of 64 experts, 6 for a token."""

import torch
from sglang.kernels.ops.moe.moe_fused_gate import moe_fused_gate

LOGITS = {tokens: torch.randn(tokens, 64, device="cuda") for tokens in (64, 8192)}
LAUNCHES = {
    f"softmax without a bias, {tokens} tokens": lambda logits=logits: moe_fused_gate(
        logits, None, 6, scoring_func="softmax"
    )
    for tokens, logits in LOGITS.items()
}
