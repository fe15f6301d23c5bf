"""Four Triton kernels of SGLang 0.5.23 one below their threshold and at it, on a card.

    unfix exec --record FILE -- python -m bench.thresholds_on_gpu

The thresholds are those of `unfix rehearse`, in pages of `docs/findings`. Each case runs in a
process of its own. A tensor lies 2^31 elements behind the start of a buffer, so an offset that
wraps around reads or writes the buffer's first half, where it is seen, and no memory of others.
`correct` says that every value is right and the first half is untouched.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton

WRAP = 1 << 31
TIMEOUT = 60


def make_behind_front(
    shape: tuple[int, ...], value: float, front: float
) -> tuple[torch.Tensor, torch.Tensor]:
    count = math.prod(shape)
    buffer = torch.empty(WRAP + count, dtype=torch.bfloat16, device="cuda")
    buffer[:WRAP].fill_(front)
    tensor = buffer[WRAP:].view(shape)
    tensor.fill_(value)
    return buffer, tensor


def is_all(tensor: torch.Tensor, value: float) -> bool:
    """Compare in parts: a whole comparison would need as much memory again."""
    flat = tensor.reshape(-1)
    return all(bool((part == value).all()) for part in flat.split(1 << 28))


def run_qkvzba(tokens: int) -> dict[str, Any]:
    """Qwen3-Next on one card: 16 key heads and 32 value heads of 128."""
    from sglang.kernels.ops.attention.triton_gdn_fused_proj import fused_qkvzba_split_reshape_cat

    _, qkvz = make_behind_front((tokens, 12288), 1.0, 3.0)
    ba = torch.ones(tokens, 64, dtype=torch.bfloat16, device="cuda")
    qkv, z, *_ = fused_qkvzba_split_reshape_cat(qkvz, ba, 16, 32, 128, 128)
    torch.cuda.synchronize()
    return {
        "correct": is_all(qkv, 1.0) and is_all(z, 1.0),
        "last token's first query": float(qkv[-1, 0]),
        "expected": 1.0,
    }


def run_qkv_split(tokens: int) -> dict[str, Any]:
    """Qwen3-Next on one card."""
    from sglang.kernels.ops.attention.triton_gdn_fused_proj import fused_qkv_split_gdn_prefill

    _, qkv = make_behind_front((tokens, 8192), 1.0, 3.0)
    q, k, v = fused_qkv_split_gdn_prefill(qkv, 16, 16, 32, 128, 128, 128)
    torch.cuda.synchronize()
    return {
        "correct": is_all(q, 1.0) and is_all(k, 1.0) and is_all(v, 1.0),
        "last token's first query": float(q[0, -1, 0, 0]),
        "expected": 1.0,
    }


def run_delta_states(tokens: int) -> dict[str, Any]:
    """Qwen3-Next on one card: a state of ones that nothing changes, stored for each chunk of 64."""
    from sglang.kernels.ops.attention.fla import chunk_delta_h as module

    chunks = triton.cdiv(tokens, 64)
    buffer, states = make_behind_front((1, chunks, 32, 128, 128), 0.0, 0.0)

    def zeros(heads: int) -> torch.Tensor:
        return torch.zeros(1, tokens, heads, 128, dtype=torch.bfloat16, device="cuda")

    state = torch.ones(2, 32, 128, 128, device="cuda")
    ends = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    v, w = zeros(32), zeros(32)
    kernel = module.chunk_gated_delta_rule_fwd_kernel_h_blockdim64
    kernel[lambda meta: (triton.cdiv(128, meta["BV"]), 32)](
        k=zeros(16),
        v=v,
        w=w,
        v_new=torch.empty_like(v),
        g=torch.zeros(1, tokens, 32, device="cuda"),
        gk=None,
        h=states,
        initial_state=state,
        initial_state_indices=torch.tensor([1], dtype=torch.int32, device="cuda"),
        stride_init_state=state.stride(0),
        cu_seqlens=ends,
        chunk_offsets=torch.tensor([0, chunks], device="cuda"),
        track_state=None,
        track_chunk_idx=None,
        stride_track_state=0,
        T=tokens,
        H=32,
        Hg=16,
        K=128,
        V=128,
        BT=64,
        USE_G=True,
        USE_GK=False,
        USE_INITIAL_STATE=True,
        INPLACE_UPDATE=True,
        SAVE_NEW_VALUE=True,
        IS_VARLEN=True,
        NT_BUCKET=1,
        USE_EXP2=False,
        TRACK_STATE=False,
    )
    torch.cuda.synchronize()
    return {
        "correct": is_all(states, 1.0) and is_all(buffer[:WRAP], 0.0),
        "last chunk's state": float(states[0, -1, 0, 0, 0]),
        "expected": 1.0,
        "written before the tensor": float(buffer[0]),
    }


def run_concat_keys(tokens: int) -> dict[str, Any]:
    """DeepSeek-V3 with two cards a rank of attention, and Kimi-K2 with one: 64 heads."""
    from sglang.kernels.ops.attention.mla_qk_prep import concat_and_cast_mha_k_triton

    _, kv = make_behind_front((tokens, 64, 256), 1.0, 3.0)
    rope = torch.ones(tokens, 1, 64, dtype=torch.bfloat16, device="cuda")
    k = torch.empty(tokens, 64, 192, dtype=torch.bfloat16, device="cuda")
    concat_and_cast_mha_k_triton(k, kv[..., :128], rope)
    torch.cuda.synchronize()
    return {
        "correct": is_all(k, 1.0),
        "last token's first key": float(k[-1, 0, 0]),
        "expected": 1.0,
    }


CASES: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "fused_qkvzba_split_reshape_cat_kernel": (run_qkvzba, 174_764),
    "fused_qkv_split_gdn_prefill_kernel": (run_qkv_split, 262_145),
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": (run_delta_states, 262_145),
    "concat_and_cast_mha_k_kernel": (run_concat_keys, 131_073),
}


def run_in_process(name: str, tokens: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "bench.thresholds_on_gpu", name, str(tokens)]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {TIMEOUT} s"}
    if ended.returncode != 0:
        return {"error": ended.stderr[-600:]}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(CASES[sys.argv[1]][0](int(sys.argv[2]))))
    else:
        for case, (_, threshold) in CASES.items():
            for size in (threshold - 1, threshold):
                print(case, size, json.dumps(run_in_process(case, size)), flush=True)
