"""Norms, activations and sums of rows in SGLang's CUDA kernels.

THE INVARIANTS IN PLAIN WORDS
- Each row is what its definition says in float64, to the rounding of its type.
- A result has each of its places written, and nothing else changes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import gelu

from fixtures import cuda_kernels
from fixtures.cuda_kernels import KernelDraw
from harness.runs.zoo.formulas import Formula, FormulaList, Pair
from harness.sanitizer.plugins.for_sglang.formulas import gate_rows, normalize_rows

EPSILON = 1e-6

formula = FormulaList()


def draw_row(draw: KernelDraw, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw some rows, as small as a norm's epsilon also, and a weight for them."""
    return draw.halves(draw.between(1, 4), width, scale=draw_scale(draw)), draw.halves(width)


def draw_scale(draw: KernelDraw) -> float:
    return float(draw.one_of(1.0, 1e-3))


def norm_row(draw: KernelDraw, run: Any, width: int) -> Pair:
    rows, weight = draw_row(draw, width)
    wanted = normalize_rows(rows.double(), weight)
    out = draw.empty(*rows.shape) if draw.flag() else None
    run(rows, weight, out, EPSILON)
    return [rows if out is None else out], [wanted]


formula.add_variants(
    norm_row,
    "layernorm.norm:rmsnorm",
    a_row_is_normed_by_a_warp={"width": 128},
    a_row_is_normed_by_half_a_block={"width": 512},
    a_row_is_normed_by_a_block={"width": 768},
)


@formula("layernorm.norm:fused_add_rmsnorm")
def a_residual_is_added_before_the_norm(draw: KernelDraw, run: Any) -> Pair:
    rows, weight = draw_row(draw, draw.one_of(256, 1024))
    residual = draw.halves(*rows.shape, scale=draw_scale(draw))
    total = rows.double() + residual.double()
    run(rows, residual, weight, EPSILON)
    return [residual, rows], [total, normalize_rows(total, weight)]


@formula("layernorm.norm:fused_inplace_qknorm")
def heads_are_normed_in_place(draw: KernelDraw, run: Any) -> Pair:
    tokens, queries, keys = draw.between(1, 4), draw.between(1, 3), draw.between(1, 2)
    heads = draw.halves(tokens, queries + keys + 1, 64, scale=draw_scale(draw))
    parts = heads.split([queries, keys, 1], 1)
    weights = [draw.halves(64) for _ in range(2)]
    normed = [normalize_rows(part.double(), one) for part, one in zip(parts, weights, strict=False)]
    wanted = torch.cat([*normed, parts[2].double()], 1)
    run(*parts[:2], *weights, EPSILON)
    return [heads], [wanted]


@formula("layernorm.fused_eh_norm:fused_eh_norm")
def two_rows_are_normed_and_joined(draw: KernelDraw, run: Any) -> Pair:
    tokens = draw.between(1, 4)
    pair = [(draw.halves(tokens, 512), draw.halves(512)) for _ in range(2)]
    normed = [normalize_rows(rows.double(), weight) for rows, weight in pair]
    rows, weights = zip(*pair, strict=True)
    return [run(*rows, *weights, EPSILON)], [torch.cat(normed, -1)]


@formula("layernorm.rmsnorm_hf:rmsnorm_hf")
def a_row_is_rounded_and_then_weighted(draw: KernelDraw, run: Any) -> Pair:
    rows, weight = draw_row(draw, 128)
    return [run(rows, weight, EPSILON)], [normalize_rows(rows.double(), weight)]


@formula("layernorm.grouped_gemma_rmsnorm:grouped_gemma_rmsnorm")
def a_row_is_normed_by_group(draw: KernelDraw, run: Any) -> Pair:
    rows, weight = draw_row(draw, 1024)
    groups = normalize_rows(rows.double().unflatten(-1, (2, 512)), weight.view(2, 512), offset=1.0)
    return [run(rows, weight, 512, EPSILON)], [groups.flatten(1)]


def gate_row(draw: KernelDraw, run: Any, activation: str) -> Pair:
    """Gate rows; those of no expert are left alone."""
    rows = draw.halves(draw.between(1, 4), 128)
    experts = draw.integers(-1, 1, len(rows)) if draw.flag() else None
    out, wanted = draw.zeros(len(rows), 64), gate_rows(rows.double(), activation)
    run(rows, out, experts)
    if experts is not None:
        assert not out[experts < 0].any()
        wanted[experts < 0] = 0
    return [out], [wanted]


for name in ("silu", "gelu", "gelu_tanh"):
    launcher, variant = f"activation.activation:{name}_and_mul", {"activation": name}
    formula.add_variants(gate_row, launcher, **{f"{name}_is_applied": variant})


@formula("elementwise.add3:add3")
def three_rows_are_added(draw: KernelDraw, run: Any) -> Pair:
    tokens = draw.between(1, 4)
    rows = [draw.halves(tokens, 64) for _ in range(3)]
    return [run(*rows)], [torch.stack(rows).double().sum(0)]


@formula("elementwise.mla_output_gate:kimi_k3_mla_output_gate")
def a_row_is_gated(draw: KernelDraw, run: Any) -> Pair:
    first = draw.halves(draw.between(1, 4), 64)
    second = draw.halves(*first.shape)
    return [run(first, second)], [first.double() * second.double().sigmoid()]


@formula("elementwise.row_scale:row_scale_bf16")
def a_row_is_scaled(draw: KernelDraw, run: Any) -> Pair:
    rows = draw.halves(draw.between(1, 4), 64)
    factors = draw.halves(len(rows)).float()
    return [run(rows, factors)], [rows.double() * factors.double()[:, None]]


@formula("elementwise.row_sum:row_sum")
def a_row_is_summed(draw: KernelDraw, run: Any) -> Pair:
    numbers = draw.halves(draw.between(1, 4), 7).float()
    return [run(numbers)], [numbers.double().sum(-1)]


@formula("activation.bias_gelu:bias_gelu_tanh")
def a_row_is_activated_behind_its_bias(draw: KernelDraw, run: Any) -> Pair:
    rows, bias = draw_row(draw, 64)
    return [run(rows, bias)], [gelu(rows.double() + bias.double(), approximate="tanh")]


@formula("moe.moe_topk_sum:moe_topk_sum")
def the_rows_of_a_tokens_experts_are_summed(draw: KernelDraw, run: Any) -> Pair:
    parts = draw.halves(draw.between(1, 4), 2, 64)
    out = draw.empty(len(parts), 64)
    run(parts, out)
    return [out], [parts.double().sum(1)]


@formula("moe.shuffle_weighted_sum:shuffle_weighted_sum")
def the_rows_of_a_tokens_routes_are_weighted_and_summed(draw: KernelDraw, run: Any) -> Pair:
    tokens, inputs = draw.between(1, 4), draw.halves(draw.between(1, 5), 64)
    routes = draw.integers(-1, len(inputs), tokens, 2)
    weights, out = draw.halves(tokens, 2).float(), draw.empty(tokens, 64)
    run(inputs, out, routes.flatten(), weights)
    used = inputs.double()[routes.clamp(min=0).long()] * (routes >= 0)[..., None]
    return [out], [(used * weights.double()[..., None]).sum(1)]


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules, names=cuda_kernels.list_modules(formula)
)


@pytest.mark.parametrize("kernel", formula.formulas, ids=lambda kernel: kernel.name)
@given(data=st.data())
def test_a_kernel_computes_its_formula(kernel: Formula, data: st.DataObject) -> None:
    cuda_kernels.compare_kernel(kernel, data, relative=0.01, absolute=0.02)
