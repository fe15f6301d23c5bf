"""Calls around attention: rotations, indexers, compressed and packed keys."""

from __future__ import annotations

import torch

from loader_calls.tensors import (
    draw_rotations,
    empty,
    find,
    floats,
    int32,
    int64,
    launches,
    normal,
    zeros,
)

_DSA = "ops.attention.dsa"
_DSV4 = "ops.attention.dsv4"
_FP8 = torch.float8_e4m3fn
_BYTES = torch.uint8


def zero_bytes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=_BYTES, device="cuda")


@launches(f"{_DSA}.indexer_k._jit_k_indexer_norm_rope_module")
def norm_and_rotate_index_keys() -> None:
    norm_and_rotate = find(f"{_DSA}.indexer_k", "fused_k_indexer_norm_rope")
    norm_and_rotate(
        normal(3, 128), floats(128), floats(128), 1e-6, floats(32, 64), int64([0, 4, 7])
    )


@launches(f"{_DSA}.indexer_k._jit_k_indexer_norm_rope_store_module")
def store_rotated_index_keys() -> None:
    store = find(f"{_DSA}.indexer_k", "fused_k_indexer_norm_rope_store")
    keys, cache, slots = normal(3, 128), zero_bytes(4, 64 * 132), int64([1, 70, 9])
    norms = floats(128), floats(128)
    store(keys, cache, slots, *norms, 1e-6, floats(32, 64), int64([0, 4, 7]), 64)


@launches(f"{_DSA}.indexer_q._jit_main_q_indexer_rope_first_quant_module")
def quantize_rotated_index_queries() -> None:
    quantize = find(f"{_DSA}.indexer_q", "fused_q_indexer_rope_first_quant")
    quantize(normal(3, 64, 128), normal(3, 64), 0.5, floats(32, 64), int64([0, 4, 7]))


@launches(f"{_DSA}.kpool_topk_transform._jit_kpool_topk_transform_module")
def select_pooled_tokens() -> None:
    select = find(f"{_DSA}.kpool_topk_transform", "fast_kpool_topk_transform_fused")
    select(floats(2, 1024), int32([700, 1024]), 4, 1024)


@launches(f"{_DSA}.fused_metadata_copy._jit_fused_metadata_copy_multi_module")
def copy_metadata_of_three_steps() -> None:
    copy = find(f"{_DSA}.fused_metadata_copy", "fused_metadata_copy_multi_cuda")
    lengths, sums = int32([3, 2]), int32([0, 3, 5])
    source = [lengths, sums, zeros(2, 8, dtype=torch.int32), lengths, sums, None, None, None]
    targets = [
        target
        for _ in range(3)
        for target in (
            *(zeros(2, dtype=torch.int32), zeros(3, dtype=torch.int32)),
            zeros(2, 16, dtype=torch.int32),
            *(zeros(2, dtype=torch.int32), zeros(3, dtype=torch.int32)),
            *(None, None, None),
        )
    ]
    copy(*source, *targets, 2, 8, 2)


@launches("ops.attention.minicpm_sala.get_block_table._jit_get_block_table_module")
def translate_chosen_blocks() -> None:
    translate = find("ops.attention.minicpm_sala.get_block_table", "get_block_table")
    chosen = torch.arange(16, dtype=torch.int32).view(2, 1, 8).to("cuda")
    table = torch.arange(8192, dtype=torch.int32).view(1, 8192).to("cuda")
    requests = int32([0]), int32([5000]), int32([1])
    translate(chosen, table, *requests, 2, 256, elementwise=False)


@launches("ops.attention.set_mla_kv_concat_q.set_mla_kv_concat_q_fp8_module")
def store_a_latent_row_as_fp8() -> None:
    store = find("ops.attention.set_mla_kv_concat_q", "set_mla_kv_concat_q_fp8")
    keys, queries = (normal(2, 512), normal(2, 64)), (normal(2, 4, 512), normal(2, 4, 64))
    store(zeros(8, 576, dtype=_FP8), int64([1, 3]), *keys, *queries)


@launches("ops.attention.kda_packed_decode._jit_kda_packed_decode_module")
def decode_packed_delta_rule() -> None:
    decode = find("ops.attention.kda_packed_decode", "kda_packed_decode")
    batch, heads = 2, 2
    decode(
        normal(batch, 3 * heads * 128),
        normal(batch, heads * 128),
        normal(batch, heads),
        floats(heads),
        floats(heads * 128),
        0.1,
        floats(4, heads, 128, 128),
        empty(batch, 1, heads, 128),
        int32([1, 2]),
        heads,
    )


@launches("ops.attention.kda_fused_decode._jit_kda_fused_decode_module")
def decode_fused_delta_rule() -> None:
    decode = find("ops.attention.kda_fused_decode", "kda_fused_decode")
    batch, heads = 2, 3
    width = heads * 128
    decode(
        *(normal(batch, 3 * width), normal(batch, width), normal(batch, heads)),
        normal(4, 3, 3 * width),
        *(floats(4, width), floats(4, width), floats(4, width), floats(3 * width)),
        *(floats(heads), floats(width), normal(batch, width), floats(128)),
        *(floats(4, heads, 128, 128), int32([1, 2]), 0.1, 1e-6),
    )


@launches("ops.attention.qsa_indexer._jit_qsa_indexer_module")
def store_index_key_states() -> None:
    store = find("ops.attention.qsa_indexer", "qsa_index_q_norm_rope_store")
    axes, states = zeros(32, dtype=torch.int32), zeros(8, 128)
    positions = zeros(8, 3, dtype=torch.int64)
    rows = normal(2, 3 * 128), int64([1, 2]), floats(32, 64), axes, normal(128), int64([0, 1])
    store(*rows, states, positions, 2, 64, 1e-6, False)


@launches("ops.attention.minimax_qknorm_rope._jit_module")
def norm_and_rotate_two_groups() -> None:
    norm_and_rotate = find("ops.attention.minimax_qknorm_rope", "_fused_gemma_qknorm_rope")
    groups = 0, 1, 128, 1, 256, 1, 0, 0, 3
    weights = [normal(128)] * 4
    norm_and_rotate(normal(2, 384), *weights, floats(32, 64), int64([1, 2]), *groups, 1e-6)


@launches(f"{_DSV4}.norm_rope._jit_fused_norm_rope_module")
def norm_and_rotate_a_latent_row() -> None:
    norm_and_rotate = find(f"{_DSV4}.norm_rope", "fused_norm_rope_inplace")
    norm_and_rotate(normal(2, 128), normal(128), 1e-6, draw_rotations(), int64([1, 2]))


@launches(f"{_DSV4}.norm_rope._jit_main_q_norm_rope_module")
def rotate_latent_queries() -> None:
    rotate = find(f"{_DSV4}.norm_rope", "fused_q_norm_rope")
    rotate(normal(2, 4, 128), empty(2, 4, 128), None, draw_rotations(), int64([1, 2]))


@launches(f"{_DSV4}.norm_rope._jit_main_q_indexer_rope_hadamard_quant_module")
def quantize_transformed_queries() -> None:
    quantize = find(f"{_DSV4}.norm_rope", "fused_q_indexer_rope_hadamard_quant")
    quantize(normal(2, 64, 128), normal(2, 64), 0.5, draw_rotations(), int64([1, 2]))


@launches(f"{_DSV4}.norm_rope._jit_main_q_indexer_rope_hadamard_fp4_quant_module")
def quantize_transformed_queries_as_fp4() -> None:
    quantize = find(f"{_DSV4}.norm_rope", "fused_q_indexer_rope_hadamard_fp4_quant")
    quantize(normal(2, 64, 128), normal(2, 64), 0.5, draw_rotations(), int64([1, 2]))


@launches(f"{_DSV4}.norm_rope._jit_main_k_norm_rope_flashmla_module")
def store_rotated_latent_rows() -> None:
    store = find(f"{_DSV4}.norm_rope", "fused_k_norm_rope_flashmla")
    rows = normal(2, 512), normal(512), 1e-6, draw_rotations(), int64([1, 2])
    store(*rows, int32([3, 70]), zero_bytes(2, 37440), 64)


@launches(f"{_DSV4}.attn._jit_fused_store_module")
def store_latent_rows() -> None:
    store = find(f"{_DSV4}.attn", "fused_store_cache")
    store(normal(2, 512), zero_bytes(2, 37440), int32([3, 70]), page_size=64, type="flashmla")


@launches(f"{_DSV4}.low_ratio_compress._jit_c1_module")
def store_rows_of_ratio_one() -> None:
    store = find(f"{_DSV4}.low_ratio_compress", "c1_decode_norm_rope_store")
    rows = normal(2, 512), normal(512), int32([1, 2]), int32([3, 70])
    store(*rows, 1e-6, floats(32, 64), zero_bytes(2, 37440), page_size=64)


@launches(f"{_DSV4}.fp4_indexer_rope._jit_index_k_module")
def pack_index_keys() -> None:
    pack = find(f"{_DSV4}.fp4_indexer_rope", "index_k_norm_rope_pack_store")
    rows = normal(2, 128), normal(128), 1e-6, floats(64, 64), int64([3, 7]), int64([1, 70])
    pack(*rows, zero_bytes(2, 64 * 68), ratio=4)


@launches(f"{_DSV4}.fp4_indexer_rope._jit_index_q_module")
def pack_index_queries() -> None:
    pack = find(f"{_DSV4}.fp4_indexer_rope", "index_q_rope_pack_weights")
    pack(normal(2, 64, 128), floats(32, 64), int64([1, 2]), normal(2, 64), 0.5)


@launches(f"{_DSV4}.compress._jit_compress_128_online_module")
def compress_online() -> None:
    plans = find(f"{_DSV4}.compress", "CompressorPrefillPlan")
    tokens = torch.arange(512, dtype=torch.int32).view(1, 512).to("cuda")
    lengths = torch.tensor([256])
    plan = plans.generate_online(lengths, lengths, int64([0]), tokens, 256)
    find(f"{_DSV4}.compress", "compress_forward")(
        floats(8, 1, 3 * 512),
        floats(256, 1024),
        floats(128, 512),
        plan,
        head_dim=512,
        compress_ratio=128,
        is_online=True,
        out=empty(len(plan[1]) or 256, 512, dtype=torch.float32),
    )


@launches(f"{_DSV4}.online_c128_mtp._jit_online_c128_mtp_module")
def mark_pending_states() -> None:
    mark = find(f"{_DSV4}.online_c128_mtp", "online_c128_mtp_mark_pending")
    pending = zeros(4, dtype=torch.int64)
    mark(int64([130, 5]), int64([0, 1]), pending, 2, 4, head_dim=512, state_dtype=torch.float32)
