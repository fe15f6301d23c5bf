"""Calls of routes, alignment and quantization of experts, and of small products."""

from __future__ import annotations

import torch

from loader_calls.tensors import empty, find, floats, int32, int64, launches, normal, zeros

_FP8 = torch.float8_e4m3fn
_TRTLLM = "ops.lora.moe.trtllm_lora_temp"


@launches("ops.lora.moe.moe_lora_align._jit_moe_align_module")
def align_adapters() -> None:
    align = find("ops.lora.moe.moe_lora_align", "moe_lora_align_block_size")
    outputs = [empty(size, dtype=torch.int32) for size in (2 * 64, 2 * 16, 2)]
    chosen = int32([[0, 1], [2, 3], [1, 0], [7, 7]])
    sizes = 8, 4, 2, 64, 16
    align(chosen, int32([0, 2, 4]), int32([0, 1]), *sizes, *outputs, int32([1, 1]), int32([0, 1]))


@launches(f"{_TRTLLM}.moe_lora_merged_align._jit_module")
def align_merged_adapters() -> None:
    align = find(f"{_TRTLLM}.moe_lora_merged_align", "moe_lora_merged_align")
    align(int32([[0, 1], [2, 3]]), int32([0, 1]), 4, False, 2, 4)


@launches(f"{_TRTLLM}.kimi_k2_moe_fused_gate._jit_kimi_k2_moe_fused_gate_module")
def choose_kimi_experts() -> None:
    choose = find(f"{_TRTLLM}.kimi_k2_moe_fused_gate", "kimi_k2_moe_fused_gate")
    choose(floats(2, 384), floats(384), 8, True)


@launches(f"{_TRTLLM}.topk_softmax_pack._jit_topk_softmax_pack_module")
def pack_chosen_experts() -> None:
    pack = find(f"{_TRTLLM}.topk_softmax_pack", "topk_softmax_pack")
    ids = empty(2, 2, dtype=torch.int32), empty(2, 2, dtype=torch.int32)
    pack(empty(2, 2, dtype=torch.float32), *ids, floats(2, 8), True)


@launches("ops.moe.moe_route_radix._jit_route_radix_module")
def choose_by_radix() -> None:
    choose = find("ops.moe.moe_route_radix", "route_radix")
    choose(floats(2, 896), floats(896), 16, True, 1.0, False)


@launches("ops.moe.moe_route_quant_fused._jit_module")
def choose_and_quantize() -> None:
    choose = find("ops.moe.moe_route_quant_fused", "route_quant_fused")
    choose(floats(2, 896), floats(896), normal(2, 3584), 16, True, 1.0, False)


@launches("ops.moe.moe_front._jit_module")
def finish_a_merged_front() -> None:
    outputs = empty(2, 16, dtype=torch.float32), empty(2, 16, dtype=torch.int32), empty(2, 512)
    options = 16, 1.0, True, False, 224, 8, False
    module = find("ops.moe.moe_front", "_jit_module")()
    module.front_epilogue(floats(2, 896 + 512), floats(896), *outputs, *options)


@launches("ops.moe.inkling_gate_topk_renorm._jit_module")
def choose_inkling_experts() -> None:
    choose = find("ops.moe.inkling_gate_topk_renorm", "inkling_gate_topk_renorm_v2")
    choose(floats(2, 264)[:, :258], floats(256), floats(1), 1.0)


@launches("ops.moe.muse_spark_routing_jit._jit_module")
def choose_muse_experts() -> None:
    choose = find("ops.moe.muse_spark_routing_jit", "fused_muse_spark_routing_jit")
    choose(floats(2, 128), floats(128), 8, 1.0)


@launches("ops.moe.paged_experts._jit_module")
def decide_which_experts_move() -> None:
    decide = find("ops.moe.paged_experts", "paged_experts_decide")
    none = [torch.full((size,), -1, dtype=torch.int32, device="cuda") for size in (4, 8)]
    lists = [zeros(4, dtype=torch.int32) for _ in range(3)]
    decide(int32([1, 3]), int32([1]), *none, *lists, zeros(1, dtype=torch.int32))


@launches("ops.moe.dsv4._jit_silu_mul_quant_varlen_module")
def gate_and_quantize_by_expert() -> None:
    gate = find("ops.moe.dsv4", "silu_and_mul_masked_post_quant")
    outputs = empty(2, 4, 256, dtype=_FP8), empty(2, 4, 2, dtype=torch.float32)
    gate(normal(2, 4, 512), *outputs, 128, int32([2, 3]))


@launches("ops.moe.kimi_k3_situ_and_mul_quant._jit_situ_mul_quant_varlen_module")
def gate_and_quantize_kimi_rows() -> None:
    gate = find("ops.moe.kimi_k3_situ_and_mul_quant", "situ_and_mul_masked_post_quant")
    outputs = empty(2, 4, 256, dtype=_FP8), empty(2, 4, 2, dtype=torch.float32)
    gate(normal(2, 4, 512), *outputs, 128, int32([2, 3]), 1.0, 1.0)


@launches("ops.lplb.cuda_solver._dispatch_module")
def draw_copies_of_experts() -> None:
    draw = find("ops.lplb.cuda_solver", "dispatch_probability")
    shares = torch.full((4, 2), 0.5, device="cuda")
    draw(int32([[0, 1]]), shares, int32([[0, 1], [2, 3], [4, 5], [6, 7]]))


@launches("ops.gemm.hopper_bf16_gemv._jit_hopper_bf16_gemv_module")
def multiply_one_row() -> None:
    find("ops.gemm.hopper_bf16_gemv", "hopper_bf16_gemv")(normal(1, 512), normal(64, 512))


@launches("ops.gemm.inkling_rel_proj._jit_rel_proj_module")
def project_relations() -> None:
    find("ops.gemm.inkling_rel_proj", "rel_proj_small_t")(normal(2, 4, 128), normal(128, 64))


@launches("ops.gemm.tiny_gemm._jit_tiny_gemm_module")
def multiply_few_rows() -> None:
    multiply = find("ops.gemm.tiny_gemm", "tiny_gemm_bf16")
    multiply(normal(2, 1024), normal(16, 1024), max_m=4)


@launches("ops.gemm.muse_spark_router_gemm._jit_module")
def multiply_by_a_router() -> None:
    find("ops.gemm.muse_spark_router_gemm", "router_gemm")(floats(2, 4096), floats(4096, 64))


@launches("ops.quantization.awq_marlin_repack._jit_awq_marlin_repack_module")
def repack_awq_weights() -> None:
    repack = find("ops.quantization.awq_marlin_repack", "awq_marlin_repack")
    repack(zeros(16, 8, dtype=torch.int32), 16, 64, 4)


@launches("ops.quantization.gptq_marlin_repack._jit_gptq_marlin_repack_module")
def repack_gptq_weights() -> None:
    repack = find("ops.quantization.gptq_marlin_repack", "gptq_marlin_repack")
    order = torch.arange(16, dtype=torch.int32).to("cuda")
    repack(zeros(2, 64, dtype=torch.int32), order, 16, 64, 4)


@launches("ops.quantization.awq_dequantize._jit_awq_dequantize_module")
def dequantize_awq_weights() -> None:
    dequantize = find("ops.quantization.awq_dequantize", "awq_dequantize")
    weights, zero_points = zeros(128, 16, dtype=torch.int32), zeros(1, 16, dtype=torch.int32)
    dequantize(weights, normal(1, 128), zero_points)


@launches("ops.quantization.per_tensor_quant_fp8._jit_per_tensor_absmax_fp8_module")
def find_a_scale() -> None:
    find("ops.quantization.per_tensor_quant_fp8", "per_tensor_absmax_fp8")(
        normal(4, 256), zeros(1, dtype=torch.float32)
    )


@launches("ops.quantization.per_token_group_quant_8bit_v2._jit_module")
def quantize_groups() -> None:
    quantize = find(
        "ops.quantization.per_token_group_quant_8bit_v2", "per_token_group_quant_8bit_v2"
    )
    outputs = empty(2, 256, dtype=_FP8), empty(2, 2, dtype=torch.float32)
    quantize(normal(2, 256), *outputs, 128, 1e-10, -448.0, 448.0)


@launches("ops.quantization.fp8_group_major_quant_ue8m0._jit_module")
def quantize_by_groups_first() -> None:
    module = "ops.quantization.fp8_group_major_quant_ue8m0"
    find(module, "sglang_per_token_group_quant_fp8_dsv4_wo_a")(normal(2, 2, 512))


@launches("ops.moe.dsv4._jit_mega_moe_pre_dispatch_module")
def prepare_a_dispatch() -> None:
    rows = zeros(4, 512, dtype=_FP8), zeros(4, 4, dtype=torch.int32)
    routes = zeros(4, 2, dtype=torch.int64), zeros(4, 2, dtype=torch.float32)
    chosen = int64([[0, 1], [2, 3]])
    find("ops.moe.dsv4", "mega_moe_pre_dispatch")(
        normal(2, 512), chosen, floats(2, 2), *rows, *routes
    )
