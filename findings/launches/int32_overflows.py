"""The five CUDA kernels with loads of a server."""

import torch
from sglang.kernels.ops.attention.fixup_zero_kv import fixup_zero_kv_rows
from sglang.kernels.ops.attention.fused_qknorm_rope import fused_qk_norm_rope
from sglang.kernels.ops.mamba.inkling_sconv import causal_conv1d
from sglang.kernels.ops.speculative.tree import build_tree_kernel_efficient

TOKENS, HEAD = 8192, 128
INTS = {"device": "cuda", "dtype": torch.int32}
HALF = {"device": "cuda", "dtype": torch.bfloat16}


def make_qk_norm():
    fused, weight = torch.randn(TOKENS, 48 * HEAD, **HALF), torch.ones(HEAD, **HALF)
    positions = torch.arange(TOKENS, **INTS)
    return lambda: fused_qk_norm_rope(
        fused, 32, 8, 8, HEAD, 1e-6, weight, weight, 1e4, True, positions, 1.0, 1.0, 1.0, 1.0
    )


def make_convolution():
    tokens, weight = torch.randn(TOKENS, 2048, **HALF), torch.randn(2048, 4, **HALF)
    cache, mask = torch.zeros(2, 3, 2048, **HALF), torch.ones(1, 1, 1, device="cuda").bool()
    slot, ends = torch.tensor([1], device="cuda"), torch.tensor([0, TOKENS], device="cuda")
    owners = torch.zeros(TOKENS, **INTS)
    return lambda: causal_conv1d(
        tokens, weight, cache, mask, slot, ends, owners, use_residual=False
    )


def make_fixup():
    out = torch.randn(TOKENS, HEAD, HEAD, **HALF)
    sums = torch.zeros(TOKENS, HEAD, device="cuda")
    lengths, ends = torch.tensor([1, 0], **INTS), torch.tensor([0, TOKENS // 2, TOKENS], **INTS)
    return lambda: fixup_zero_kv_rows(out, sums, lengths, ends, TOKENS // 2)


def make_tree():
    requests, size, context = 64, 4, 4096
    longs = {"device": "cuda", "dtype": torch.int64}
    lengths = torch.full((requests,), context, **longs)
    mask = torch.empty(requests * size * (context + size), device="cuda", dtype=torch.bool)
    links = [torch.full((requests, size), -1, **longs) for _ in range(3)]
    positions = torch.empty(requests * size, **longs)
    parents = torch.arange(-1, size - 2, **longs).repeat(requests, 1)
    chosen = torch.arange(size - 1, **longs).repeat(requests, 1)
    return lambda: build_tree_kernel_efficient(
        parents, chosen, lengths, mask, positions, *links, 1, size - 1, size, 0
    )


LAUNCHES = {
    "`fusedQKNormRopeKernel`, 8,192 tokens of 48 heads of 128": make_qk_norm(),
    "Inkling's `causal_conv1d_kernel`, 8,192 tokens of 2,048": make_convolution(),
    "`fixup_zero_kv_rows_kernel`, 4,096 of 8,192 tokens of 128 heads of 128": make_fixup(),
    "`build_tree_efficient`, 64 requests of 4 drafts and 4,096 tokens": make_tree(),
}
