"""Calls around attention: rotations, indexers, compressed and packed keys."""

from __future__ import annotations

import pytest
import torch

from fixtures.loader_tensors import (
    draw_floats,
    draw_normal,
    draw_rotations,
    find_function,
    make_empty,
    make_int32,
    make_int64,
    make_zeros,
)

_DSA = "ops.attention.dsa"
_DSV4 = "ops.attention.dsv4"
_FP8 = torch.float8_e4m3fn
_BYTES = torch.uint8


def zero_bytes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=_BYTES, device="cuda")


@pytest.mark.loader(f"{_DSA}.indexer_k._jit_k_indexer_norm_rope_module")
def test_norm_and_rotate_index_keys() -> None:
    norm_and_rotate = find_function(f"{_DSA}.indexer_k", "fused_k_indexer_norm_rope")
    norm_and_rotate(
        draw_normal(3, 128),
        draw_floats(128),
        draw_floats(128),
        1e-6,
        draw_floats(32, 64),
        make_int64([0, 4, 7]),
    )


@pytest.mark.loader(f"{_DSA}.indexer_k._jit_k_indexer_norm_rope_store_module")
def test_store_rotated_index_keys() -> None:
    store = find_function(f"{_DSA}.indexer_k", "fused_k_indexer_norm_rope_store")
    keys, cache, slots = draw_normal(3, 128), zero_bytes(4, 64 * 132), make_int64([1, 70, 9])
    norms = draw_floats(128), draw_floats(128)
    store(keys, cache, slots, *norms, 1e-6, draw_floats(32, 64), make_int64([0, 4, 7]), 64)


@pytest.mark.loader(f"{_DSA}.indexer_q._jit_main_q_indexer_rope_first_quant_module")
def test_quantize_rotated_index_queries() -> None:
    quantize = find_function(f"{_DSA}.indexer_q", "fused_q_indexer_rope_first_quant")
    quantize(
        draw_normal(3, 64, 128), draw_normal(3, 64), 0.5, draw_floats(32, 64), make_int64([0, 4, 7])
    )


@pytest.mark.loader(f"{_DSA}.kpool_topk_transform._jit_kpool_topk_transform_module")
def test_select_pooled_tokens() -> None:
    select = find_function(f"{_DSA}.kpool_topk_transform", "fast_kpool_topk_transform_fused")
    select(draw_floats(2, 1024), make_int32([700, 1024]), 4, 1024)


@pytest.mark.loader(f"{_DSA}.fused_metadata_copy._jit_fused_metadata_copy_multi_module")
def test_copy_metadata_of_three_steps() -> None:
    copy = find_function(f"{_DSA}.fused_metadata_copy", "fused_metadata_copy_multi_cuda")
    lengths, sums = make_int32([3, 2]), make_int32([0, 3, 5])
    source = [lengths, sums, make_zeros(2, 8, dtype=torch.int32), lengths, sums, None, None, None]
    targets = [
        target
        for _ in range(3)
        for target in (
            *(make_zeros(2, dtype=torch.int32), make_zeros(3, dtype=torch.int32)),
            make_zeros(2, 16, dtype=torch.int32),
            *(make_zeros(2, dtype=torch.int32), make_zeros(3, dtype=torch.int32)),
            *(None, None, None),
        )
    ]
    copy(*source, *targets, 2, 8, 2)


@pytest.mark.loader("ops.attention.minicpm_sala.get_block_table._jit_get_block_table_module")
def test_translate_chosen_blocks() -> None:
    translate = find_function("ops.attention.minicpm_sala.get_block_table", "get_block_table")
    chosen = torch.arange(16, dtype=torch.int32).view(2, 1, 8).to("cuda")
    table = torch.arange(8192, dtype=torch.int32).view(1, 8192).to("cuda")
    requests = make_int32([0]), make_int32([5000]), make_int32([1])
    translate(chosen, table, *requests, 2, 256, elementwise=False)


@pytest.mark.loader("ops.attention.set_mla_kv_concat_q.set_mla_kv_concat_q_fp8_module")
def test_store_a_latent_row_as_fp8() -> None:
    store = find_function("ops.attention.set_mla_kv_concat_q", "set_mla_kv_concat_q_fp8")
    keys, queries = (
        (draw_normal(2, 512), draw_normal(2, 64)),
        (draw_normal(2, 4, 512), draw_normal(2, 4, 64)),
    )
    store(make_zeros(8, 576, dtype=_FP8), make_int64([1, 3]), *keys, *queries)


@pytest.mark.loader("ops.attention.kda_packed_decode._jit_kda_packed_decode_module")
def test_decode_packed_delta_rule() -> None:
    decode = find_function("ops.attention.kda_packed_decode", "kda_packed_decode")
    batch, heads = 2, 2
    decode(
        draw_normal(batch, 3 * heads * 128),
        draw_normal(batch, heads * 128),
        draw_normal(batch, heads),
        draw_floats(heads),
        draw_floats(heads * 128),
        0.1,
        draw_floats(4, heads, 128, 128),
        make_empty(batch, 1, heads, 128),
        make_int32([1, 2]),
        heads,
    )


# Two lanes' words are added by shuffles, and the first lane writes the place of the second one's.
@pytest.mark.loader("ops.attention.kda_fused_decode._jit_kda_fused_decode_module", races=False)
def test_decode_fused_delta_rule() -> None:
    decode = find_function("ops.attention.kda_fused_decode", "kda_fused_decode")
    batch, heads = 2, 3
    width = heads * 128
    decode(
        *(draw_normal(batch, 3 * width), draw_normal(batch, width), draw_normal(batch, heads)),
        draw_normal(4, 3, 3 * width),
        *(
            draw_floats(4, width),
            draw_floats(4, width),
            draw_floats(4, width),
            draw_floats(3 * width),
        ),
        *(draw_floats(heads), draw_floats(width), draw_normal(batch, width), draw_floats(128)),
        *(draw_floats(4, heads, 128, 128), make_int32([1, 2]), 0.1, 1e-6),
    )


@pytest.mark.loader("ops.attention.qsa_indexer._jit_qsa_indexer_module")
def test_store_index_key_states() -> None:
    store = find_function("ops.attention.qsa_indexer", "qsa_index_q_norm_rope_store")
    axes, states = make_zeros(32, dtype=torch.int32), make_zeros(8, 128)
    positions = make_zeros(8, 3, dtype=torch.int64)
    rows = (
        draw_normal(2, 3 * 128),
        make_int64([1, 2]),
        draw_floats(32, 64),
        axes,
        draw_normal(128),
        make_int64([0, 1]),
    )
    store(*rows, states, positions, 2, 64, 1e-6, False)


@pytest.mark.loader("ops.attention.minimax_qknorm_rope._jit_module")
def test_norm_and_rotate_two_groups() -> None:
    norm_and_rotate = find_function("ops.attention.minimax_qknorm_rope", "_fused_gemma_qknorm_rope")
    groups = 0, 1, 1, 1, 2, 1, 0, 0, 3
    weights = [draw_normal(128)] * 4
    norm_and_rotate(
        draw_normal(2, 384), *weights, draw_floats(32, 64), make_int64([1, 2]), *groups, 1e-6
    )


@pytest.mark.loader(f"{_DSV4}.norm_rope._jit_fused_norm_rope_module")
def test_norm_and_rotate_a_latent_row() -> None:
    norm_and_rotate = find_function(f"{_DSV4}.norm_rope", "fused_norm_rope_inplace")
    norm_and_rotate(
        draw_normal(2, 128), draw_normal(128), 1e-6, draw_rotations(), make_int64([1, 2])
    )


@pytest.mark.loader(f"{_DSV4}.norm_rope._jit_main_q_norm_rope_module")
def test_rotate_latent_queries() -> None:
    rotate = find_function(f"{_DSV4}.norm_rope", "fused_q_norm_rope")
    rotate(
        draw_normal(2, 4, 128), make_empty(2, 4, 128), None, draw_rotations(), make_int64([1, 2])
    )


@pytest.mark.loader(f"{_DSV4}.norm_rope._jit_main_q_indexer_rope_hadamard_quant_module")
def test_quantize_transformed_queries() -> None:
    quantize = find_function(f"{_DSV4}.norm_rope", "fused_q_indexer_rope_hadamard_quant")
    quantize(draw_normal(2, 64, 128), draw_normal(2, 64), 0.5, draw_rotations(), make_int64([1, 2]))


@pytest.mark.loader(f"{_DSV4}.norm_rope._jit_main_q_indexer_rope_hadamard_fp4_quant_module")
def test_quantize_transformed_queries_as_fp4() -> None:
    quantize = find_function(f"{_DSV4}.norm_rope", "fused_q_indexer_rope_hadamard_fp4_quant")
    quantize(draw_normal(2, 64, 128), draw_normal(2, 64), 0.5, draw_rotations(), make_int64([1, 2]))


@pytest.mark.loader(f"{_DSV4}.norm_rope._jit_main_k_norm_rope_flashmla_module")
def test_store_rotated_latent_rows() -> None:
    store = find_function(f"{_DSV4}.norm_rope", "fused_k_norm_rope_flashmla")
    rows = draw_normal(2, 512), draw_normal(512), 1e-6, draw_rotations(), make_int64([1, 2])
    store(*rows, make_int32([3, 70]), zero_bytes(2, 37440), 64)


@pytest.mark.loader(f"{_DSV4}.attn._jit_fused_store_module")
def test_store_latent_rows() -> None:
    store = find_function(f"{_DSV4}.attn", "fused_store_cache")
    store(
        draw_normal(2, 512),
        zero_bytes(2, 37440),
        make_int32([3, 70]),
        page_size=64,
        type="flashmla",
    )


@pytest.mark.loader(f"{_DSV4}.low_ratio_compress._jit_c1_module")
def test_store_rows_of_ratio_one() -> None:
    store = find_function(f"{_DSV4}.low_ratio_compress", "c1_decode_norm_rope_store")
    rows = draw_normal(2, 512), draw_normal(512), make_int32([1, 2]), make_int32([3, 70])
    store(*rows, 1e-6, draw_floats(32, 64), zero_bytes(2, 37440), page_size=64)


@pytest.mark.loader(f"{_DSV4}.fp4_indexer_rope._jit_index_k_module")
def test_pack_index_keys() -> None:
    pack = find_function(f"{_DSV4}.fp4_indexer_rope", "index_k_norm_rope_pack_store")
    rows = (
        draw_normal(2, 128),
        draw_normal(128),
        1e-6,
        draw_floats(64, 64),
        make_int64([3, 7]),
        make_int64([1, 70]),
    )
    pack(*rows, zero_bytes(2, 64 * 68), ratio=4)


@pytest.mark.loader(f"{_DSV4}.fp4_indexer_rope._jit_index_q_module")
def test_pack_index_queries() -> None:
    pack = find_function(f"{_DSV4}.fp4_indexer_rope", "index_q_rope_pack_weights")
    pack(draw_normal(2, 64, 128), draw_floats(32, 64), make_int64([1, 2]), draw_normal(2, 64), 0.5)


@pytest.mark.loader(f"{_DSV4}.compress._jit_compress_128_online_module")
def test_compress_online() -> None:
    plans = find_function(f"{_DSV4}.compress", "CompressorPrefillPlan")
    tokens = torch.arange(512, dtype=torch.int32).view(1, 512).to("cuda")
    lengths = torch.tensor([256])
    plan = plans.generate_online(lengths, lengths, make_int64([0]), tokens, 256)
    find_function(f"{_DSV4}.compress", "compress_forward")(
        draw_floats(8, 1, 3 * 512),
        draw_floats(256, 1024),
        draw_floats(128, 512),
        plan,
        head_dim=512,
        compress_ratio=128,
        is_online=True,
        out=make_empty(len(plan[1]) or 256, 512, dtype=torch.float32),
    )


@pytest.mark.loader(f"{_DSV4}.online_c128_mtp._jit_online_c128_mtp_module")
def test_mark_pending_states() -> None:
    mark = find_function(f"{_DSV4}.online_c128_mtp", "online_c128_mtp_mark_pending")
    pending = make_zeros(4, dtype=torch.int64)
    mark(
        make_int64([130, 5]),
        make_int64([0, 1]),
        pending,
        2,
        4,
        head_dim=512,
        state_dtype=torch.float32,
    )
