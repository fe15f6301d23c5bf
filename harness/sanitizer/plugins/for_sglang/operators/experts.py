"""Mixture of experts: the order of tokens by expert, and the choice of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.sanitizer.device import dispatch, dry_run, memory
from harness.sanitizer.device.stand_ins import JitBuild, stand_in
from harness.sanitizer.plugins.for_sglang.formulas import multiply_rows


@stand_in(
    "sgl_kernel.moe_align_block_size",
    "jit:moe_align_block_size.moe_align_block_size",
    source="sglang/kernels/ops/moe/moe_align.py",
)
def moe_align_block_size(
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    experts_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
    cumsum_buffer: torch.Tensor,
    pad_sorted_token_ids: bool = False,
    ignore_invalid_expert: bool = False,
    build: JitBuild | None = None,
) -> None:
    """Sort the places of `topk_ids` by expert; pad each expert's places to whole blocks.

    `num_experts` counts one more than there are: the first bucket is of expert -1, a filtered one.
    Example: with ids [[0, 1], [1, -1]] and blocks of 2, the blocks are of -1, 0, 1, and the places
    [3 4 | 0 4 | 1 2], where 4 is padding: written on request, else the caller's own.
    """
    flags = [False] * 3 if build is None else [flag == "true" for flag in build.marker[2:5]]
    writes_filtered_blocks, filters_invalid, pads_owners = flags
    order = sort_places(
        memory.to_host(topk_ids).flatten(), num_experts, filters_invalid, ignore_invalid_expert
    )
    blocks = (order.counts + block_size - 1) // block_size
    ends = (blocks * block_size).cumsum(0)
    total, starts = int(ends[-1]), (ends - blocks * block_size).tolist()
    outputs = (sorted_token_ids, experts_ids, num_tokens_post_pad, cumsum_buffer)
    rows, owners, totals, sums = map(memory.to_host, outputs)
    if pad_sorted_token_ids:
        rows.fill_(topk_ids.numel())
    for start, places in zip(starts, order.places.split(order.counts.tolist()), strict=True):
        rows[start : start + len(places)] = places
    if pads_owners:
        owners.fill_(-1)
    numbers = torch.arange(-1, num_experts - 1)
    owners[: total // block_size] = torch.repeat_interleave(numbers, blocks)
    totals[:1] = total
    if writes_filtered_blocks:
        totals[1] = blocks[0]
    sums[0] = 0
    sums[1 : num_experts + 1] = ends
    lengths = (
        *(len(rows), len(owners) if pads_owners else total // block_size),
        *(1 + writes_filtered_blocks, num_experts + 1),
    )
    for output, length in zip(outputs, lengths, strict=True):
        dispatch.report_derived(output[:length], topk_ids)


@dataclass(frozen=True, slots=True)
class ExpertOrder:
    """The places of a batch's choices, sorted by expert; on the host."""

    ids: torch.Tensor
    request: tuple[int, bool, bool]
    places: torch.Tensor
    counts: torch.Tensor  # of each bucket


_last_order: ExpertOrder | None = None


def sort_places(
    ids: torch.Tensor, num_experts: int, filters_invalid: bool, ignores_invalid: bool
) -> ExpertOrder:
    """Sort places by expert, once for layers that choose alike: the last order is kept.

    A layer of a dry run gets the same choices as the one before it, millions in a long prompt.
    """
    global _last_order
    request, known = (num_experts, filters_invalid, ignores_invalid), _last_order
    if known is not None and known.request == request and torch.equal(known.ids, ids):
        return known
    buckets = ids + 1
    is_valid = (buckets > 0) & (buckets < num_experts)
    if filters_invalid:
        buckets = torch.where(is_valid, buckets, 0)
    places = torch.arange(ids.numel(), dtype=torch.int32)
    if ignores_invalid:
        places, buckets = places[is_valid], buckets[is_valid]
    counts = torch.bincount(buckets, minlength=num_experts)
    narrow = (
        buckets.to(torch.int16) if len(counts) < 1 << 15 else buckets
    )  # sorted in half the time
    places = places[torch.argsort(narrow, stable=True)]
    _last_order = ExpertOrder(ids.clone(), request, places, counts)
    return _last_order


def choose_experts(
    scores: torch.Tensor, choice: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Take the experts of the largest `choice`, the first of equals; return their scores."""
    count = weights.shape[-1]
    if dry_run.lacks_values(choice):  # a whole order would take memory, and say nothing
        order = choice.topk(count, dim=-1).indices
    else:
        order = torch.argsort(choice, dim=-1, descending=True, stable=True)[:, :count]
    ids.copy_(order.to(ids.dtype))
    return scores.gather(-1, order)


def _write_weights(chosen: torch.Tensor, weights: torch.Tensor, renormalize: bool) -> None:
    if renormalize:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    weights.copy_(chosen)


@stand_in(
    "sgl_kernel.topk_softmax",
    source="sgl-kernel/python/sgl_kernel/moe.py: topk_softmax",
)
def topk_softmax(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    moe_softcapping: float = 0.0,
    correction_bias: torch.Tensor | None = None,
) -> None:
    """Choose by softmax. No release of SGLang gives a cap or a bias."""
    if moe_softcapping or correction_bias is not None:
        raise NotImplementedError("the stand-in has no cap of the logits and no bias")
    scores = gating_output.float().softmax(-1)
    chosen = choose_experts(scores, scores, topk_weights, topk_ids)
    _write_weights(chosen, topk_weights, renormalize)


@stand_in("sgl_kernel.topk_sigmoid", source="sgl-kernel/python/sgl_kernel/moe.py: topk_sigmoid")
def topk_sigmoid(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    correction_bias: torch.Tensor | None = None,
) -> None:
    """Choose by sigmoid and bias, and take the bias off again: what is left of a score is rounded.

    Without a score left, weights that are to sum to 1 are no numbers, as the kernel has it.
    """
    scores = gating_output.float().sigmoid()
    if correction_bias is not None:
        choice = scores + correction_bias.float()
        scores = choice - correction_bias.float()
    else:
        choice = scores
    chosen = choose_experts(scores, choice, topk_weights, topk_ids)
    _write_weights(chosen, topk_weights, renormalize)


def select_groups(choice: torch.Tensor, group_count: int, chosen_groups: int) -> torch.Tensor:
    """Mask the experts outside of the best groups; a group counts by its two best experts."""
    if dry_run.lacks_values(choice):
        return choice
    grouped = choice.unflatten(1, (group_count, -1))
    best = min(2, grouped.shape[-1])
    group_scores = grouped.topk(best, dim=-1).values.sum(-1)
    groups = torch.argsort(group_scores, dim=-1, descending=True, stable=True)[:, :chosen_groups]
    is_chosen = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, groups, True)
    return grouped.masked_fill(~is_chosen.unsqueeze(-1), float("-inf")).flatten(1)


@stand_in(
    "flashinfer.fused_moe.fused_topk_deepseek",
    source="flashinfer/fused_moe/fused_routing_dsv3.py: fused_topk_deepseek",
)
def fused_topk_deepseek(
    scores: torch.Tensor,
    bias: torch.Tensor,
    n_group: int,
    topk_group: int,
    topk: int,
    routed_scaling_factor: float,
    topk_values: torch.Tensor,
    topk_indices: torch.Tensor,
    launch_with_pdl: bool = True,
) -> None:
    """Choose by sigmoid and bias among the best groups; weights sum to the scaling factor."""
    probabilities = scores.float().sigmoid()
    choice = select_groups(probabilities + bias.float(), n_group, topk_group)
    chosen = choose_experts(probabilities, choice, topk_values, topk_indices)
    topk_values.copy_(chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * routed_scaling_factor)


@stand_in(
    "sgl_kernel.moe_fused_gate",
    source="sgl-kernel/csrc/moe/moe_fused_gate.cu",
)
def moe_fused_gate(
    input_tensor: torch.Tensor,
    bias: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    topk: int,
    num_fused_shared_experts: int = 0,
    routed_scaling_factor: float = 0.0,
    apply_routed_scaling_factor_on_output: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose among the best groups; the last `num_fused_shared_experts` are the shared ones.

    The routed weights sum to one, or to the scaling factor if it is applied here. Where it is
    applied behind, a shared expert's weight is its inverse, so that it counts once.
    """
    routed = topk - num_fused_shared_experts
    shape, device = (len(input_tensor), routed), input_tensor.device
    weights = torch.empty(shape, dtype=torch.float32, device=device)
    ids = torch.empty(shape, dtype=torch.int32, device=device)
    scale = routed_scaling_factor if apply_routed_scaling_factor_on_output else 1.0
    fused_topk_deepseek(
        input_tensor, bias, num_expert_group, topk_group, routed, scale, weights, ids
    )
    if num_fused_shared_experts:
        experts = input_tensor.shape[-1]
        shared = torch.arange(experts, experts + num_fused_shared_experts, dtype=torch.int32)
        ids = torch.cat([ids, shared.to(device).expand(len(ids), -1)], dim=-1)
        weight = scale / routed_scaling_factor
        weights = torch.nn.functional.pad(weights, (0, num_fused_shared_experts), value=weight)
    return weights, ids


@stand_in(
    "jit:dsv3_router_gemm.dsv3_router_gemm",
    source="sglang/kernels/jit/csrc/gemm/dsv3_router_gemm.cuh",
)
def dsv3_router_gemm(
    hidden_states: torch.Tensor, router_weights: torch.Tensor, output: torch.Tensor
) -> None:
    """Score each token for each expert, in float32; for the few tokens of a decode."""
    output.copy_(multiply_rows(hidden_states, router_weights))


@stand_in("sgl_kernel.moe_sum_reduce", source="sgl-kernel/python/sgl_kernel/moe.py: moe_sum_reduce")
def moe_sum_reduce(
    input_tensor: torch.Tensor, output_tensor: torch.Tensor, routed_scaling_factor: float = 0.0
) -> None:
    """Sum a token's experts, in float32, and scale the sum."""
    output_tensor.copy_(input_tensor.float().sum(1) * routed_scaling_factor)


@stand_in("jit:dpsk_v4_mask_topk.run", source="sglang/kernels/jit/csrc/deepseek_v4/hash_topk.cuh")
def mask_topk(topk_ids: torch.Tensor, token_count: torch.Tensor) -> None:
    """Write -1 for the experts of each row behind the first `token_count`, which are padding."""
    rows = torch.arange(topk_ids.shape[0], device=topk_ids.device).unsqueeze(1)
    topk_ids.masked_fill_(rows >= token_count, -1)
