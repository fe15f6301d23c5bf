"""Norms, activations and sums of rows in SGLang's CUDA kernels.

THE INVARIANTS IN PLAIN WORDS
- Each row is what its definition says in float64, to the rounding of its type.
- A result has each of its places written, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking

EPSILON = 1e-6


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "activation.activation",
        "activation.bias_gelu",
        "elementwise.add3",
        "elementwise.mla_output_gate",
        "elementwise.row_scale",
        "elementwise.row_sum",
        "layernorm.fused_eh_norm",
        "layernorm.grouped_gemma_rmsnorm",
        "layernorm.norm",
        "layernorm.rmsnorm_hf",
        "moe.moe_topk_sum",
        "moe.shuffle_weighted_sum",
    ),
)

tokens = st.integers(1, 4)


@pytest.mark.parametrize("width", [128, 512, 768], ids=["warp", "half", "block"])
@given(tokens=tokens, has_out=st.booleans(), seed=cuda_kernels.seeds)
def test_a_row_is_normed(width: int, tokens: int, has_out: bool, seed: int) -> None:
    run = cuda_kernels.require_kernel("layernorm.norm", "rmsnorm")
    with checking.checked_cuda() as check:
        rows, weight = (
            draw_rows(seed, tokens, width, check.device),
            draw_weight(seed, width, check.device),
        )
        wanted = normalize_rows(rows, weight)
        out = torch.empty_like(rows) if has_out else None
        run(rows, weight, out, EPSILON)
        if out is not None:
            check.assert_written(out)
        expect_close(rows if out is None else out, wanted)


@given(tokens=tokens, width=st.sampled_from([256, 1024]), seed=cuda_kernels.seeds)
def test_a_residual_is_added_before_the_norm(tokens: int, width: int, seed: int) -> None:
    run = cuda_kernels.require_kernel("layernorm.norm", "fused_add_rmsnorm")
    with checking.checked_cuda() as check:
        rows, weight = (
            draw_rows(seed, tokens, width, check.device),
            draw_weight(seed, width, check.device),
        )
        residual = draw_rows(seed + 1, tokens, width, check.device)
        total = rows.double() + residual.double()
        run(rows, residual, weight, EPSILON)
        expect_close(residual, total)
        expect_close(rows, normalize_rows(total, weight))


@given(tokens=tokens, queries=st.integers(1, 3), keys=st.integers(1, 2), seed=cuda_kernels.seeds)
def test_heads_are_normed_in_place(tokens: int, queries: int, keys: int, seed: int) -> None:
    run = cuda_kernels.require_kernel("layernorm.norm", "fused_inplace_qknorm")
    head = 64
    with checking.checked_cuda() as check:
        fused = draw_rows(seed, tokens, (queries + keys + 1) * head, check.device)
        heads = fused.view(tokens, -1, head)
        weights = [draw_weight(seed + n, head, check.device) for n in (1, 2)]
        wanted = heads.double().clone()
        wanted[:, :queries] = normalize_rows(heads[:, :queries], weights[0])
        wanted[:, queries : queries + keys] = normalize_rows(
            heads[:, queries : queries + keys], weights[1]
        )
        values = heads[:, queries + keys :].clone()
        run(heads[:, :queries], heads[:, queries : queries + keys], *weights, EPSILON)
        expect_close(heads, wanted)
        assert heads[:, queries + keys :].equal(values)


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_two_rows_are_normed_and_joined(tokens: int, seed: int) -> None:
    join = cuda_kernels.require_kernel("layernorm.fused_eh_norm", "fused_eh_norm")
    with checking.checked_cuda() as check:
        device = check.device
        embedded, hidden = (
            draw_rows(seed, tokens, 512, device),
            draw_rows(seed + 1, tokens, 512, device),
        )
        weights = [draw_weight(seed + n, 512, device) for n in (2, 3)]
        joined = join(embedded, hidden, *weights, EPSILON)
        expect_close(
            joined,
            torch.cat(
                [normalize_rows(embedded, weights[0]), normalize_rows(hidden, weights[1])], -1
            ),
        )


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_a_row_is_rounded_and_then_weighted(tokens: int, seed: int) -> None:
    round_first = cuda_kernels.require_kernel("layernorm.rmsnorm_hf", "rmsnorm_hf")
    with checking.checked_cuda() as check:
        device = check.device
        narrow, weight = draw_rows(seed, tokens, 128, device), draw_weight(seed, 128, device)
        expect_close(round_first(narrow, weight, EPSILON), normalize_rows(narrow, weight))


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_a_row_is_normed_by_group(tokens: int, seed: int) -> None:
    by_group = cuda_kernels.require_kernel(
        "layernorm.grouped_gemma_rmsnorm", "grouped_gemma_rmsnorm"
    )
    with checking.checked_cuda() as check:
        device = check.device
        groups, weight = draw_rows(seed, tokens, 1024, device), draw_weight(seed, 1024, device)
        exact = normalize_rows(groups.view(tokens, 2, 512), torch.ones(512, device=device))
        exact *= 1 + weight.double().view(2, 512)
        expect_close(by_group(groups, weight, 512, EPSILON), exact.flatten(1))


def _compute_silu(gate: torch.Tensor) -> torch.Tensor:
    return gate * gate.sigmoid()


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_and_mul": _compute_silu,
    "gelu_and_mul": torch.nn.functional.gelu,
    "gelu_tanh_and_mul": lambda gate: torch.nn.functional.gelu(gate, approximate="tanh"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@given(
    skipped=st.lists(st.booleans(), min_size=1, max_size=4),
    has_experts=st.booleans(),
    seed=cuda_kernels.seeds,
)
def test_a_gate_is_applied(name: str, skipped: list[bool], has_experts: bool, seed: int) -> None:
    run = cuda_kernels.require_kernel("activation.activation", name)
    with checking.checked_cuda() as check:
        rows = draw_rows(seed, len(skipped), 128, check.device)
        out = torch.zeros(len(skipped), 64, dtype=torch.bfloat16, device=check.device)
        experts = torch.tensor([-one for one in skipped], dtype=torch.int32, device=check.device)
        run(rows, out, experts if has_experts else None)
        gate, up = rows.double().chunk(2, -1)
        wanted = ACTIVATIONS[name](gate) * up
        if has_experts:
            wanted[torch.tensor(skipped)] = 0  # rows of no expert are left alone
            assert not out[torch.tensor(skipped)].any()
        expect_close(out, wanted)


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_three_rows_are_added(tokens: int, seed: int) -> None:
    add = cuda_kernels.require_kernel("elementwise.add3", "add3")
    with checking.checked_cuda() as check:
        first, second, third = (draw_rows(seed + n, tokens, 64, check.device) for n in range(3))
        exact = first.double() + second.double() + third.double()
        expect_close(add(first, second, third), exact)


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_a_row_is_gated(tokens: int, seed: int) -> None:
    gate = cuda_kernels.require_kernel("elementwise.mla_output_gate", "kimi_k3_mla_output_gate")
    with checking.checked_cuda() as check:
        first, second = (draw_rows(seed + n, tokens, 64, check.device) for n in range(2))
        expect_close(gate(first, second), first.double() * second.double().sigmoid())


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_a_row_is_scaled(tokens: int, seed: int) -> None:
    scale = cuda_kernels.require_kernel("elementwise.row_scale", "row_scale_bf16")
    with checking.checked_cuda() as check:
        rows = draw_rows(seed, tokens, 64, check.device)
        factors = draw_rows(seed, 1, tokens, check.device)[0].float()
        expect_close(scale(rows, factors), rows.double() * factors.double()[:, None])


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_a_row_is_summed(tokens: int, seed: int) -> None:
    total = cuda_kernels.require_kernel("elementwise.row_sum", "row_sum")
    with checking.checked_cuda() as check:
        numbers = draw_rows(seed, tokens, 7, check.device).float()
        expect_close(total(numbers), numbers.double().sum(-1))


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_a_row_is_activated_behind_its_bias(tokens: int, seed: int) -> None:
    gelu = cuda_kernels.require_kernel("activation.bias_gelu", "bias_gelu_tanh")
    with checking.checked_cuda() as check:
        rows, biases = (draw_rows(seed + n, tokens, 64, check.device) for n in range(2))
        exact = torch.nn.functional.gelu(rows.double() + biases[0].double(), approximate="tanh")
        expect_close(gelu(rows, biases[0].contiguous()), exact)


@given(tokens=tokens, seed=cuda_kernels.seeds)
def test_the_rows_of_a_tokens_experts_are_summed(tokens: int, seed: int) -> None:
    add = cuda_kernels.require_kernel("moe.moe_topk_sum", "moe_topk_sum")
    with checking.checked_cuda() as check:
        device, width = check.device, 64
        parts = draw_rows(seed, tokens * 2, width, device).view(tokens, 2, width)
        out = torch.empty(tokens, width, dtype=torch.bfloat16, device=device)
        add(parts, out)
        check.assert_written(out)
        expect_close(out, parts.double().sum(1))


@given(
    tokens=tokens,
    rows=st.integers(1, 5),
    seed=cuda_kernels.seeds,
    data=st.data(),
)
def test_the_rows_of_a_tokens_routes_are_weighted_and_summed(
    tokens: int, rows: int, seed: int, data: st.DataObject
) -> None:
    weighted = cuda_kernels.require_kernel("moe.shuffle_weighted_sum", "shuffle_weighted_sum")
    with checking.checked_cuda() as check:
        device, width = check.device, 64
        routes = [data.draw(st.integers(-1, rows - 1)) for _ in range(2 * tokens)]
        inputs = draw_rows(seed, rows, width, device)
        weights = draw_rows(seed + 1, tokens, 2, device).float()
        out = torch.empty(tokens, width, dtype=torch.bfloat16, device=device)
        weighted(inputs, out, torch.tensor(routes, dtype=torch.int32, device=device), weights)
        check.assert_written(out)
        exact = torch.zeros(tokens, width, dtype=torch.float64, device=device)
        for route, row in enumerate(routes):
            if row >= 0:
                exact[route // 2] += inputs[row].double() * weights[route // 2, route % 2].double()
        expect_close(out, exact)


def draw_rows(seed: int, rows: int, width: int, device: str) -> torch.Tensor:
    return cuda_kernels.draw_normal(seed, rows, width, device=device)


def draw_weight(seed: int, width: int, device: str) -> torch.Tensor:
    return draw_rows(seed + 50, 1, width, device)[0]


def normalize_rows(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    exact = rows.double()
    return exact * (exact.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()


def expect_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=0.01, atol=0.02)
