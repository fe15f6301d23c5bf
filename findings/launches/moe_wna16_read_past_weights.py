"""int4 weights of 64 experts, 1,408 deep as on one rank (11 blocks) or 352 as on four (2.75)."""

import torch
import triton.language as tl
from sglang.kernels.ops.moe.fused_moe_triton_kernels import fused_moe_kernel_gptq_awq

EXPERTS, WIDTH, GROUP, BLOCK_M = 64, 2048, 32, 16
GROUPS = 64  # blocks of tokens, one for each expert


def make_launch(depth):
    tokens = GROUPS * BLOCK_M
    states = torch.randn(tokens, depth, device="cuda", dtype=torch.bfloat16)
    weights = torch.randint(0, 255, (EXPERTS, WIDTH, depth // 2), device="cuda", dtype=torch.uint8)
    scales = torch.ones(EXPERTS, WIDTH, depth // GROUP, device="cuda", dtype=torch.bfloat16)
    output = torch.empty(tokens, 1, WIDTH, device="cuda", dtype=torch.bfloat16)
    ints = {"device": "cuda", "dtype": torch.int32}
    ids, experts = torch.arange(tokens, **ints), torch.arange(GROUPS, **ints)
    padded = torch.tensor([tokens], **ints)
    return lambda: fused_moe_kernel_gptq_awq[(GROUPS * WIDTH // 64,)](
        a_ptr=states, b_ptr=weights, c_ptr=output, b_scale_ptr=scales, b_zp_ptr=None,
        topk_weights_ptr=None, sorted_token_ids_ptr=ids, expert_ids_ptr=experts,
        num_tokens_post_padded_ptr=padded,
        N=WIDTH, K=depth, EM=tokens, num_valid_tokens=tokens,
        stride_am=depth, stride_ak=1,
        stride_be=weights.stride(0), stride_bk=1, stride_bn=weights.stride(1),
        stride_cm=WIDTH, stride_cn=1,
        stride_bse=scales.stride(0), stride_bsk=1, stride_bsn=scales.stride(1),
        stride_bze=0, stride_bzk=0, stride_bzn=0,
        group_size=GROUP, BLOCK_SIZE_M=BLOCK_M, BLOCK_SIZE_N=64, BLOCK_SIZE_K=128,
        GROUP_SIZE_M=1, MUL_ROUTED_WEIGHT=False, top_k=1, compute_type=tl.bfloat16,
        has_zp=False, use_int4_w4a16=True, use_int8_w8a16=False, even_Ks=depth % 128 == 0,
    )  # fmt: skip


LAUNCHES = {f"depth {depth}, 1,024 tokens": make_launch(depth) for depth in (1408, 352)}
