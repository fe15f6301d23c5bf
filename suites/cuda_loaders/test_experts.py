"""Calls of routes, alignment and quantization of experts, and of small products."""

from __future__ import annotations

import pytest
import torch

from fixtures.loader_tensors import (
    compare_tensors,
    draw_floats,
    draw_normal,
    find_function,
    make_empty,
    make_int32,
    make_zeros,
)
from harness.sanitizer.plugins.for_sglang.formulas import find_scales, multiply_rows

_FP8 = torch.float8_e4m3fn
_TRTLLM = "ops.lora.moe.trtllm_lora_temp"


@pytest.mark.loader("ops.lora.moe.moe_lora_align._jit_moe_align_module")
def test_align_adapters() -> None:
    align = find_function("ops.lora.moe.moe_lora_align", "moe_lora_align_block_size")
    outputs = [make_empty(size, dtype=torch.int32) for size in (2 * 64, 2 * 16, 2)]
    chosen = make_int32([[0, 1], [2, 3], [1, 0], [7, 7]])
    sizes = 8, 4, 2, 64, 16
    align(
        chosen,
        make_int32([0, 2, 4]),
        make_int32([0, 1]),
        *sizes,
        *outputs,
        make_int32([1, 1]),
        make_int32([0, 1]),
    )


@pytest.mark.loader(f"{_TRTLLM}.moe_lora_merged_align._jit_module")
def test_align_merged_adapters() -> None:
    align = find_function(f"{_TRTLLM}.moe_lora_merged_align", "moe_lora_merged_align")
    align(make_int32([[0, 1], [2, 3]]), make_int32([0, 1]), 4, False, 2, 4)


@pytest.mark.loader(f"{_TRTLLM}.kimi_k2_moe_fused_gate._jit_kimi_k2_moe_fused_gate_module")
def test_choose_kimi_experts() -> None:
    choose = find_function(f"{_TRTLLM}.kimi_k2_moe_fused_gate", "kimi_k2_moe_fused_gate")
    choose(draw_floats(2, 384), draw_floats(384), 8, True)


@pytest.mark.loader(f"{_TRTLLM}.topk_softmax_pack._jit_topk_softmax_pack_module")
def test_pack_chosen_experts() -> None:
    pack = find_function(f"{_TRTLLM}.topk_softmax_pack", "topk_softmax_pack")
    weights, scores = make_empty(2, 2, dtype=torch.float32), draw_floats(2, 8)
    ids, packed = make_empty(2, 2, dtype=torch.int32), make_empty(2, 2, dtype=torch.int32)
    pack(weights, ids, packed, scores, True)
    best = scores.softmax(-1).topk(2)
    compare_tensors(ids, best.indices)
    compare_tensors(weights, best.values / best.values.sum(-1, keepdim=True), 1e-4)
    compare_tensors(packed >> 16, best.indices)


@pytest.mark.loader("ops.moe.moe_route_radix._jit_route_radix_module")
def test_choose_by_radix() -> None:
    choose = find_function("ops.moe.moe_route_radix", "route_radix")
    choose(draw_floats(2, 896), draw_floats(896), 16, True, 1.0, False)


@pytest.mark.loader("ops.moe.moe_route_quant_fused._jit_module")
def test_choose_and_quantize() -> None:
    choose = find_function("ops.moe.moe_route_quant_fused", "route_quant_fused")
    choose(draw_floats(2, 896), draw_floats(896), draw_normal(2, 3584), 16, True, 1.0, False)


@pytest.mark.loader("ops.moe.moe_front._jit_module", "B200")
def test_finish_a_merged_front() -> None:
    outputs = (
        make_empty(2, 16, dtype=torch.float32),
        make_empty(2, 16, dtype=torch.int32),
        make_empty(2, 512),
    )
    options = 16, 1.0, True, False, 224, 8, False
    module = find_function("ops.moe.moe_front", "_jit_module")()
    module.front_epilogue(draw_floats(2, 896 + 512), draw_floats(896), *outputs, *options)


@pytest.mark.loader("ops.moe.inkling_gate_topk_renorm._jit_module")
def test_choose_inkling_experts() -> None:
    choose = find_function("ops.moe.inkling_gate_topk_renorm", "inkling_gate_topk_renorm_v2")
    scores, bias = draw_floats(2, 264)[:, :258], draw_floats(256)
    _, ids, _, _ = choose(scores, bias, draw_floats(1), 1.0)
    compare_tensors(
        ids.sort().values, (scores[:, :256].sigmoid() + bias).topk(6).indices.sort().values
    )


@pytest.mark.loader("ops.moe.muse_spark_routing_jit._jit_module")
def test_choose_muse_experts() -> None:
    choose = find_function("ops.moe.muse_spark_routing_jit", "fused_muse_spark_routing_jit")
    choose(draw_floats(2, 128), draw_floats(128), 8, 1.0)


# Lanes read a table, shuffle, and then one of them writes it: an order that CUDA promises nowhere.
@pytest.mark.loader("ops.moe.paged_experts._jit_module", races=False)
def test_decide_which_experts_move() -> None:
    decide = find_function("ops.moe.paged_experts", "paged_experts_decide")
    slots, experts = make_int32([5, 1, -1, 2]), make_int32([-1, 1, 3, -1, -1, 0, -1, -1])
    used, count = make_int32([3, 2, 0, 1]), make_zeros(1, dtype=torch.int32)
    moved, places = (make_zeros(4, dtype=torch.int32) for _ in range(2))
    decide(make_int32([1, 3, 4]), make_int32([6]), slots, experts, used, moved, places, count)
    compare_tensors(count, torch.tensor([2]))
    compare_tensors(moved[:2], torch.tensor([3, 4]))
    compare_tensors(places[:2], torch.tensor([2, 3]))  # the slots that were used least recently
    compare_tensors(slots, torch.tensor([5, 1, 3, 4]))
    compare_tensors(experts, torch.tensor([-1, 1, -1, 2, 3, 0, -1, -1]))


@pytest.mark.loader("ops.moe.dsv4._jit_silu_mul_quant_varlen_module")
def test_gate_and_quantize_by_expert() -> None:
    gate = find_function("ops.moe.dsv4", "silu_and_mul_masked_post_quant")
    outputs = make_empty(2, 4, 256, dtype=_FP8), make_empty(2, 4, 2, dtype=torch.float32)
    gate(draw_normal(2, 4, 512), *outputs, 128, make_int32([2, 3]))


@pytest.mark.loader("ops.moe.kimi_k3_situ_and_mul_quant._jit_situ_mul_quant_varlen_module")
def test_gate_and_quantize_kimi_rows() -> None:
    gate = find_function("ops.moe.kimi_k3_situ_and_mul_quant", "situ_and_mul_masked_post_quant")
    outputs = make_empty(2, 4, 256, dtype=_FP8), make_empty(2, 4, 2, dtype=torch.float32)
    # A block without a row reads padding of a struct, which the check takes for data.
    gate(draw_normal(2, 4, 512), *outputs, 128, make_int32([4, 4]), 1.0, 1.0)


@pytest.mark.loader("ops.lplb.cuda_solver._dispatch_module")
def test_draw_copies_of_experts() -> None:
    draw = find_function("ops.lplb.cuda_solver", "dispatch_probability")
    shares = torch.full((4, 2), 0.5, device="cuda")
    draw(make_int32([[0, 1]]), shares, make_int32([[0, 1], [2, 3], [4, 5], [6, 7]]))


@pytest.mark.loader("ops.gemm.hopper_bf16_gemv._jit_hopper_bf16_gemv_module")
def test_multiply_one_row() -> None:
    row, weights = draw_normal(1, 512), draw_normal(64, 512)
    found = find_function("ops.gemm.hopper_bf16_gemv", "hopper_bf16_gemv")(row, weights)
    compare_tensors(found, multiply_rows(row, weights), 1e-2)


@pytest.mark.loader("ops.gemm.inkling_rel_proj._jit_rel_proj_module")
def test_project_relations() -> None:
    rows, weights = draw_normal(2, 4, 128), draw_normal(128, 64)
    found = find_function("ops.gemm.inkling_rel_proj", "rel_proj_small_t")(rows, weights)
    compare_tensors(found, rows.float() @ weights.float(), 1e-2)


@pytest.mark.loader("ops.gemm.tiny_gemm._jit_tiny_gemm_module")
def test_multiply_few_rows() -> None:
    multiply = find_function("ops.gemm.tiny_gemm", "tiny_gemm_bf16")
    rows, weights = draw_normal(2, 1024), draw_normal(16, 1024)
    compare_tensors(multiply(rows, weights, max_m=4), multiply_rows(rows, weights), 1e-2)


@pytest.mark.loader("ops.gemm.muse_spark_router_gemm._jit_module")
def test_multiply_by_a_router() -> None:
    rows, weights = draw_floats(2, 4096), draw_floats(4096, 64)
    found = find_function("ops.gemm.muse_spark_router_gemm", "router_gemm")(rows, weights)
    compare_tensors(found, rows @ weights, 1e-3)


@pytest.mark.loader("ops.quantization.awq_marlin_repack._jit_awq_marlin_repack_module")
def test_repack_awq_weights() -> None:
    repack = find_function("ops.quantization.awq_marlin_repack", "awq_marlin_repack")
    repack(make_zeros(16, 8, dtype=torch.int32), 16, 64, 4)


@pytest.mark.loader("ops.quantization.gptq_marlin_repack._jit_gptq_marlin_repack_module")
def test_repack_gptq_weights() -> None:
    repack = find_function("ops.quantization.gptq_marlin_repack", "gptq_marlin_repack")
    order = torch.arange(16, dtype=torch.int32).to("cuda")
    repack(make_zeros(2, 64, dtype=torch.int32), order, 16, 64, 4)


@pytest.mark.loader("ops.quantization.awq_dequantize._jit_awq_dequantize_module")
def test_dequantize_awq_weights() -> None:
    dequantize = find_function("ops.quantization.awq_dequantize", "awq_dequantize")
    weights, zero_points = (
        make_zeros(128, 16, dtype=torch.int32),
        make_zeros(1, 16, dtype=torch.int32),
    )
    dequantize(weights, draw_normal(1, 128), zero_points)


@pytest.mark.loader("ops.quantization.per_tensor_quant_fp8._jit_per_tensor_absmax_fp8_module")
def test_find_a_scale() -> None:
    rows, found = draw_normal(4, 256), make_zeros(1, dtype=torch.float32)
    find_function("ops.quantization.per_tensor_quant_fp8", "per_tensor_absmax_fp8")(rows, found)
    compare_tensors(found, find_scales(rows.flatten()), 1e-6)


@pytest.mark.loader("ops.quantization.per_token_group_quant_8bit_v2._jit_module")
def test_quantize_groups() -> None:
    quantize = find_function(
        "ops.quantization.per_token_group_quant_8bit_v2", "per_token_group_quant_8bit_v2"
    )
    rows, found = draw_normal(2, 256), make_empty(2, 256, dtype=_FP8)
    scales = make_empty(2, 2, dtype=torch.float32)
    quantize(rows, found, scales, 128, 1e-10, -448.0, 448.0)
    compare_tensors(scales, find_scales(rows, 128), 1e-6)
    compare_tensors(found.float().view(2, 2, 128) * scales[..., None], rows.view(2, 2, 128), 0.07)


@pytest.mark.loader("ops.quantization.fp8_group_major_quant_ue8m0._jit_module")
def test_quantize_by_groups_first() -> None:
    module = "ops.quantization.fp8_group_major_quant_ue8m0"
    find_function(module, "sglang_per_token_group_quant_fp8_dsv4_wo_a")(draw_normal(2, 2, 512))


@pytest.mark.loader("ops.moe.dsv4._jit_mega_moe_pre_dispatch_module")
def test_prepare_a_dispatch() -> None:
    rows = make_zeros(4, 512, dtype=_FP8), make_zeros(4, 4, dtype=torch.int32)
    routes = make_zeros(4, 2, dtype=torch.int64), make_zeros(4, 2, dtype=torch.float32)
    chosen = make_int32([[0, 1], [2, 3]])
    find_function("ops.moe.dsv4", "mega_moe_pre_dispatch")(
        draw_normal(2, 512), chosen, draw_floats(2, 2), *rows, *routes
    )
