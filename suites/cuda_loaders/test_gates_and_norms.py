"""Calls of gates, norms and sums of rows, and of diffusion models' rotations and layouts."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu

from fixtures.loader_tensors import (
    compare_tensors,
    draw_floats,
    draw_normal,
    draw_rotations,
    find_function,
    make_empty,
    make_zeros,
)
from harness.sanitizer.plugins.for_sglang.formulas import gate_rows, normalize_rows, rotate_heads

_CLAMP = "ops.activation.silu_and_mul_clamp"
_DIFFUSION = "ops.diffusion"
_KDA = "kda_kernels"


@pytest.mark.loader("ops.activation.kimi_k3_situ_and_mul._jit_situ_and_mul_module")
def test_gate_by_situ() -> None:
    gate = find_function("ops.activation.kimi_k3_situ_and_mul", "situ_and_mul")
    gate(draw_normal(2, 512), None, 1.0, None)


@pytest.mark.loader(f"{_CLAMP}._jit_silu_and_mul_clamp_module")
def test_gate_and_clamp() -> None:
    rows, found = draw_normal(2, 512, dtype=torch.float16), make_empty(2, 256, dtype=torch.float16)
    find_function(_CLAMP, "silu_and_mul_clamp")(rows, found, 7.0)
    compare_tensors(found, gate_rows(rows), 1e-2)  # none of them is beyond the limit


@pytest.mark.loader(f"{_CLAMP}._jit_silu_mul_quant_contig_module")
def test_gate_and_quantize() -> None:
    outputs = make_empty(4, 512, dtype=torch.float8_e4m3fn), make_empty(4, 4, dtype=torch.float32)
    find_function(_CLAMP, "silu_and_mul_contig_post_quant")(draw_normal(4, 1024), *outputs, 128)


@pytest.mark.loader("ops.elementwise.hc_combine._jit_hc_combine_module")
def test_combine_connections() -> None:
    combine = find_function("ops.elementwise.hc_combine", "hc_combine")
    combine(
        draw_normal(2, 4096),
        *(draw_normal(2, 16384) for _ in range(2)),
        draw_normal(4, 16384),
        4,
        4096,
    )


@pytest.mark.loader("ops.elementwise.hc_combine_decode._jit_module", "B200")
def test_combine_connections_of_a_step() -> None:
    shares = find_function("ops.elementwise.hc_combine_decode", "hc_combine_gate")(
        draw_normal(2, 10240), draw_normal(4, 10240)
    )
    find_function("ops.elementwise.hc_combine_decode", "hc_combine_apply")(
        draw_normal(2, 2560), draw_normal(2, 10240), shares
    )


@pytest.mark.loader("ops.layernorm.muse_spark_norm_gate_jit._jit_module")
def test_norm_and_gate_heads() -> None:
    norm = find_function("ops.layernorm.muse_spark_norm_gate_jit", "rms_norm_gate")
    rows, gates, weight = draw_normal(2, 256), draw_normal(2, 256), draw_normal(128)
    found = norm(rows, gates, weight, head_dim=128)
    normed = normalize_rows(rows.view(2, 2, 128), weight).flatten(-2)
    compare_tensors(found, normed * gates.float().sigmoid(), 2e-2)


@pytest.mark.loader("ops.layernorm.muse_spark_norm_residual_jit._jit_module")
def test_norm_a_residual_twice() -> None:
    norm = find_function("ops.layernorm.muse_spark_norm_residual_jit", "fused_norm_residual")
    weight, branch, stream = draw_normal(2048), draw_normal(2, 2048), draw_floats(2, 2048)
    found, summed, _ = norm(branch, stream, 1e-6, 1e-6, post_weight=weight, pre_weight=weight)
    compare_tensors(summed, stream + normalize_rows(branch, weight), 5e-2)
    compare_tensors(found, normalize_rows(summed, weight), 5e-2)


@pytest.mark.loader(f"{_DIFFUSION}.activation.gelu_tanh_cat_jit._module")
def test_gate_beside_attention() -> None:
    join = find_function(f"{_DIFFUSION}.activation.gelu_tanh_cat_jit", "fused_gelu_tanh_cat")
    attention, hidden = draw_normal(2, 3, 64), draw_normal(2, 3, 128)
    expected = torch.cat([attention.float(), gelu(hidden.float(), approximate="tanh")], -1)
    compare_tensors(join(attention, hidden), expected, 1e-2)


@pytest.mark.loader(f"{_DIFFUSION}.attention.vdn_delta_factors_jit._jit_vdn_delta_factors_module")
def test_invert_delta_factors() -> None:
    invert = find_function(f"{_DIFFUSION}.attention.vdn_delta_factors_jit", "vdn_delta_factors")
    unit = torch.eye(128).expand(1, 128, 128).contiguous().to("cuda")
    invert(unit, unit.clone(), torch.ones(1, 128, device="cuda"))


@pytest.mark.loader(f"{_DIFFUSION}.layout.usp_relayout_jit._jit_usp_relayout_module")
def test_merge_heads() -> None:
    rows = draw_normal(2, 3, 1, 2, 64)
    found = find_function(f"{_DIFFUSION}.layout.usp_relayout_jit", "_usp_merge_heads_cuda")(rows)
    compare_tensors(found, rows.permute(2, 1, 0, 3, 4))


@pytest.mark.loader(
    f"{_DIFFUSION}.layout.minimax_h3_vae_output_jit._jit_minimax_h3_vae_output_module"
)
def test_clamp_pixels() -> None:
    clamp = find_function(
        f"{_DIFFUSION}.layout.minimax_h3_vae_output_jit", "minimax_h3_vae_denorm_clamp"
    )
    pixels = draw_floats(1, 3, 2, 4, 8)
    found = clamp(pixels, mean=[0.25] * 3, std=[0.5] * 3)
    compare_tensors(found, ((pixels - 0.25) / 0.5).clamp(0, 1))


@pytest.mark.loader(f"{_DIFFUSION}.norm.bias_residual_add_jit._jit_module")
def test_add_bias_and_residual() -> None:
    add = find_function(f"{_DIFFUSION}.norm.bias_residual_add_jit", "bias_residual_add")
    rows, bias, residual = draw_normal(1, 16, 2, 4), draw_normal(16), draw_normal(1, 16, 2, 4)
    compare_tensors(add(rows, bias, residual), (rows + bias.view(1, 16, 1, 1)) + residual)


@pytest.mark.loader(f"{_DIFFUSION}.norm.channel_rmsnorm_finish_silu_jit._jit_module")
def test_finish_a_channel_norm() -> None:
    finish = find_function(
        f"{_DIFFUSION}.norm.channel_rmsnorm_finish_silu_jit", "channel_rmsnorm_finish_silu"
    )
    finish(
        draw_normal(1, 16, 2, 4), torch.ones(1, 1, 2, 4, device="cuda"), draw_normal(16, 1, 1), 4.0
    )


@pytest.mark.loader(f"{_DIFFUSION}.norm.channel_rmsnorm_silu_nhwc_jit._jit_module")
def test_norm_channels_that_lie_last() -> None:
    norm = find_function(
        f"{_DIFFUSION}.norm.channel_rmsnorm_silu_nhwc_jit", "channel_rmsnorm_silu_nhwc"
    )
    rows = draw_normal(1, 16, 2, 4).contiguous(memory_format=torch.channels_last)
    norm(rows, draw_normal(16, 1, 1), 4.0)


@pytest.mark.loader(f"{_DIFFUSION}.norm.flux2_gated_resnorm_jit._module")
def test_norm_a_gated_residual() -> None:
    norm = find_function(f"{_DIFFUSION}.norm.flux2_gated_resnorm_jit", "flux2_gated_resnorm_raw")
    norm(*(draw_normal(1, 2, 6144) for _ in range(2)), *(draw_normal(6144) for _ in range(3)), 1e-6)


@pytest.mark.loader(f"{_DIFFUSION}.norm.wan_norm_silu_post._module")
def test_finish_a_video_norm() -> None:
    finish = find_function(f"{_DIFFUSION}.norm.wan_norm_silu_post", "_wan_norm_silu_post")
    norm, out = (
        torch.ones(1, 1, 1, 2, 4, device="cuda"),
        make_zeros(1, 16, 1, 2, 4, dtype=torch.float32),
    )
    finish(draw_normal(1, 16, 1, 2, 4), norm, draw_floats(16), draw_floats(16), out, 4.0, False)


@pytest.mark.loader(f"{_DIFFUSION}.rope.helios_qk_rope_jit._jit_helios_qk_rope_module")
def test_rotate_in_place() -> None:
    rotate = find_function(f"{_DIFFUSION}.rope.helios_qk_rope_jit", "fused_inplace_helios_qk_rope")
    rotate(draw_normal(1, 4, 2, 128), draw_normal(1, 4, 2, 128), draw_floats(1, 4, 256))


@pytest.mark.loader(
    f"{_DIFFUSION}.rope.interleaved_rope_fp64_jit._jit_interleaved_rope_fp64_module"
)
def test_rotate_in_doubles() -> None:
    rotate = find_function(
        f"{_DIFFUSION}.rope.interleaved_rope_fp64_jit", "fused_interleaved_rope_fp64"
    )
    rows = [draw_normal(1, 4, 2, 128) for _ in range(2)]
    halves = [draw_normal(1, 4, 1, 64, dtype=torch.float64) for _ in range(2)]
    tables = [half.repeat_interleave(2, -1) for half in halves]
    cos, sin = (half.cpu() for half in halves)
    for found, row in zip(rotate(*rows, *tables), rows, strict=True):
        compare_tensors(found, rotate_heads(row.cpu().double(), cos, sin, False), 1e-2)


@pytest.mark.loader(f"{_DIFFUSION}.rope.ltx25_decoder_rope_jit._jit_ltx25_decoder_rope_module")
def test_rotate_by_three_axes() -> None:
    rotate = find_function(f"{_DIFFUSION}.rope.ltx25_decoder_rope_jit", "fused_ltx25_decoder_rope")
    sizes = (1, 10), (1, 10), (2, 10), (2, 10), (2, 12), (2, 12)
    tables = (draw_floats(*size) for size in sizes)
    rotate(*(draw_normal(1, 1, 2, 2, 2, 64) for _ in range(2)), *tables, 20, 20)


@pytest.mark.loader(f"{_DIFFUSION}.rope.qknorm_complex_rope_jit._jit_module")
def test_norm_and_rotate_by_complex_numbers() -> None:
    module = find_function(f"{_DIFFUSION}.rope.qknorm_complex_rope_jit", "_jit_module")(
        False, False
    )
    rotations = torch.view_as_real(draw_rotations(4, 128))
    module.norm_rope(
        draw_normal(1, 4, 2, 128), make_empty(1, 4, 2, 128), draw_normal(128), rotations, 1e-6
    )


@pytest.mark.loader(f"{_DIFFUSION}.rope.qwen_qkv_epilogue_jit.qwen_qkv_epilogue_module")
def test_join_text_and_image() -> None:
    join = find_function(f"{_DIFFUSION}.rope.qwen_qkv_epilogue_jit", "try_fused_qwen_qkv_epilogue")
    rows, weights = (
        (draw_normal(1, 4, 2, 128) for _ in range(6)),
        (draw_normal(128) for _ in range(4)),
    )
    assert join(*rows, *weights, draw_floats(4, 128), draw_floats(4, 128), 1e-6, 1e-6) is not None


@pytest.mark.loader(f"{_DIFFUSION}.modulate.residual_gate_add2_jit._jit_residual_gate_add2_module")
def test_add_two_gated_updates() -> None:
    module = f"{_DIFFUSION}.modulate.residual_gate_add2_jit"
    residual, first, second = (scale * draw_normal(2, 3, 64) for scale in (1, 2, -3))
    gate = draw_normal(1, 1, 64)
    found = find_function(module, "_residual_gate_add2_custom_op")(residual, first, second, gate)
    compare_tensors(found, residual.float() + gate.float() * (first + second).float(), 1e-2)


@pytest.mark.loader(f"{_KDA}.causal_conv3d_cat_pad_jit._jit_causal_conv3d_cat_pad_module")
def test_pad_frames_behind_a_cache() -> None:
    pad = find_function(f"{_KDA}.causal_conv3d_cat_pad_jit", "fused_causal_conv3d_cat_pad_cuda")
    pad(draw_normal(1, 2, 2, 4, 4), draw_normal(1, 2, 1, 4, 4), (1, 1, 1, 1, 2, 0))


@pytest.mark.loader(f"{_KDA}.ltx2_qknorm_split_rope_jit._jit_ltx2_qknorm_split_rope_module")
def test_norm_and_rotate_split_heads() -> None:
    module = f"{_KDA}.ltx2_qknorm_split_rope_jit"
    side = (
        draw_normal(1, 4, 4096),
        draw_normal(1, 32, 4, 64),
        draw_normal(1, 32, 4, 64),
        draw_normal(4096),
    )
    other = [tensor.clone() for tensor in side]
    find_function(module, "_ltx2_qknorm_split_rope_custom_op")(*side, *other, 1e-6, 32, 128, False)
