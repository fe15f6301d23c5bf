"""An output of 4,096 and adapters of one rank: a token each, or 128 as in prefill."""

from types import SimpleNamespace

import torch
from sglang.kernels.ops.lora.dense.trtllm_lora_temp.sgemm_lora_b import sgemm_lora_b_fwd

ADAPTERS, RANK, WIDTH = 8, 64, 4096


def make_launch(tokens):
    """Make a launch of `tokens` tokens for each adapter."""
    shrunk = torch.randn(ADAPTERS * tokens, RANK, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(ADAPTERS, WIDTH, RANK, device="cuda", dtype=torch.bfloat16)
    ints = {"device": "cuda", "dtype": torch.int32}
    batch = SimpleNamespace(
        bs=ADAPTERS, max_len=tokens, seg_lens=torch.full((ADAPTERS,), tokens, **ints),
        seg_indptr=torch.arange(ADAPTERS + 1, **ints) * tokens,
        weight_indices=torch.arange(ADAPTERS, **ints),
        lora_ranks=torch.full((ADAPTERS,), RANK, **ints),
        scalings=torch.ones(ADAPTERS, device="cuda"), permutation=None,
    )  # fmt: skip
    output = torch.zeros(ADAPTERS * tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
    return lambda: sgemm_lora_b_fwd(shrunk, weights, batch, output)


LAUNCHES = {f"{tokens} tokens for each of 8 adapters": make_launch(tokens) for tokens in (1, 128)}
