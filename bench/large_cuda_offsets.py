"""Six CUDA kernels of SGLang 0.5.23 with rows past 2^31 elements, on a card of 80 GB, unchecked.

    unfix exec --record FILE -- python -m bench.large_cuda_offsets

Needs SGLang 0.5.23 with its CUDA packages, and nvcc for `load_jit`. Each case runs near and far, in
processes of their own: near is right on every card; far is wrong, or an illegal memory access. The
same six are `suites/cuda_kernels/test_large_offsets.py` on a CPU, and pages of `docs/findings`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

FAR = 1 << 31  # elements


def on_card(shape: int | tuple[int, ...], kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=kind, device="cuda")


def draw_on_card(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def make_int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def keep_last_tap() -> torch.Tensor:
    """Return weights of a convolution over four tokens that gives the last of them."""
    weights = on_card((8, 4))
    weights[:, -1] = 1
    return weights


def norm_heads(distance: int) -> bool:
    from sglang.kernels.ops.attention.fused_qknorm_rope import fused_qk_norm_rope

    value_heads = 1 + distance // 128
    tokens = on_card((3, (2 + value_heads) * 64))
    rows = draw_on_card(3, 128)
    tokens[:, :128] = rows
    weight = torch.ones(64, dtype=torch.bfloat16, device="cuda")
    rope: tuple[Any, ...] = (1e4, True, make_int32([0, 0, 0]), 1.0, 1.0, 1.0, 1.0)
    fused_qk_norm_rope(tokens, 1, 1, value_heads, 64, 1e-6, weight, weight, *rope)
    heads = rows.float().view(3, 2, 64)
    wanted = heads * (heads.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return torch.allclose(tokens[:, :128].float().view(3, 2, 64), wanted, rtol=0.02, atol=0.02)


def convolve_tokens(distance: int) -> bool:
    from sglang.kernels.ops.mamba.inkling_sconv import causal_conv1d

    tokens = on_card((3, 8 + distance // 2))[:, :8]
    tokens.copy_(draw_on_card(3, 8))
    found = causal_conv1d(
        tokens,
        keep_last_tap(),
        on_card((2, 3, 8)),
        torch.ones(1, 1, 1, dtype=torch.bool, device="cuda"),
        torch.tensor([1], device="cuda"),
        torch.tensor([0, 3], device="cuda"),
        make_int32([0, 0, 0]),
        use_residual=False,
    )
    return torch.equal(found, tokens)


def clear_rows(distance: int) -> bool:
    from sglang.kernels.ops.attention.fixup_zero_kv import fixup_zero_kv_rows

    first = distance // 16384
    output = torch.ones(first + 1, 128, 128, dtype=torch.bfloat16, device="cuda")
    sums = torch.ones(first + 1, 128, device="cuda")
    fixup_zero_kv_rows(output, sums, make_int32([1, 0]), make_int32([0, first, first + 1]), 1)
    return not bool(output[first].any()) and bool(sums[first].isneginf().all())


def mask_drafts(distance: int) -> bool:
    from sglang.kernels.ops.speculative.tree import build_tree_kernel_efficient

    drafts, lengths = 2, [distance // 2, 1]
    mask = on_card(sum(length * drafts for length in lengths) + 8, torch.bool)
    links = [torch.full((2, drafts), -1, device="cuda") for _ in range(3)]
    build_tree_kernel_efficient(
        torch.tensor([[-1], [-1]], device="cuda"),
        on_card((2, 1), torch.int64),
        torch.tensor(lengths, device="cuda"),
        mask,
        torch.empty(2 * drafts, dtype=torch.int64, device="cuda"),
        *links,
        1,
        1,
        drafts,
        0,
    )
    rows = mask[-(lengths[1] + drafts) * drafts :].view(drafts, -1)
    return rows[:, lengths[1] :].tolist() == [[True, False], [True, True]]


def copy_tables(distance: int) -> bool:
    from sglang.kernels.ops.attention.dsa.fused_metadata_copy import fused_metadata_copy_cuda

    pages = make_int32(list(range(6))).view(3, 2)
    table = on_card((3, 2 + distance // 2), torch.int32)
    lengths, starts = make_int32([2, 2, 2]), make_int32([0, 2, 4, 6])
    source = lengths, starts, pages, lengths, None, starts, None, None, None
    target = lengths.clone(), starts.clone(), table, lengths.clone(), None, starts.clone()
    fused_metadata_copy_cuda(*source, *target, None, None, None, 0, 3, 2, 2, 3)
    return torch.equal(table[:, :2], pages)


def update_states(distance: int) -> bool:
    from sglang.kernels.ops.mamba.causal_conv1d import causal_conv1d_update

    pool = on_card((3, 24 + distance))  # slot 2 lies past 2^32
    states = pool[:, :24].view(3, 8, 3)
    token = draw_on_card(1, 8, 1)
    wanted = token.clone()
    causal_conv1d_update(token, states, keep_last_tap(), None, False, None, make_int32([2]), -1)
    return torch.equal(states[2, :, -1], wanted[0, :, 0]) and not bool(states[0].any())


CASES: dict[str, Callable[[int], bool]] = {
    case.__name__: case
    for case in (norm_heads, convolve_tokens, clear_rows, mask_drafts, copy_tables, update_states)
}


def describe_case(name: str, distance: int) -> str:
    command = [sys.executable, "-m", "bench.large_cuda_offsets", name, str(distance)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    errors = [line for line in lines if "CUDA error" in line or "Error" in line] or lines[-1:]
    return f"{name:15} {'far' if distance else 'near':4} {errors[0][:160] if errors else ''}"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        is_right = CASES[sys.argv[1]](int(sys.argv[2]))
        torch.cuda.synchronize()
        print("right" if is_right else "wrong")
    else:
        for case in CASES:
            for far in (0, FAR):
                print(describe_case(case, far), flush=True)
