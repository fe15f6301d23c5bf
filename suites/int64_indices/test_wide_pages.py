"""Keys in pages, and tables of pages, past the 2^31st element or byte.

THE INVARIANTS IN PLAIN WORDS
- A key is stored into its own page and read from its own page, however large the pool is.
- A request reads its own row of a captured table, however wide the context is.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import wide_rows as adapter
from fixtures.kernel_launches import launch_kernel
from harness import checking

FP8 = torch.float8_e4m3fn
SMALL = st.integers(1, 8)
NOPE, ROPE, GROUP = 512, 64, 128
BLOCKS = NOPE // GROUP


@pytest.mark.guards("30859-dsa-paged")
@given(row=adapter.draw_first_row(NOPE + ROPE), slot=adapter.draw_first_row(NOPE), code=SMALL)
def test_a_paged_key_is_read_from_its_slot_into_its_row(row: int, slot: int, code: int) -> None:
    with checking.checked() as check:
        out = adapter.make_wide_rows(row, NOPE + ROPE, torch.bfloat16, check.device)
        codes = adapter.make_wide_rows(slot, NOPE, FP8, check.device)
        scales = adapter.make_wide_rows(slot, BLOCKS, torch.float32, check.device)
        rope = adapter.make_wide_rows(slot, ROPE, torch.bfloat16, check.device)
        table = checking.virtual_zeros((row + 1,), torch.int32, check.device)
        codes[slot], scales[slot], rope[slot], table[row] = float(code), 2.0, 3.0, slot
        launch_kernel(
            check, "_dequantize_k_cache_paged_kernel of 30859-dsa-paged", (row + 1, BLOCKS + 1),
            [(row, block) for block in range(BLOCKS + 1)],
            output_ptr=out, input_nope_q_ptr=codes, input_nope_s_ptr=scales, input_rope_ptr=rope,
            page_table_1_ptr=table, output_stride_0=out.stride(0),
            input_nope_q_stride_0=codes.stride(0), input_nope_s_stride_0=scales.stride(0),
            input_rope_stride_0=rope.stride(0), NUM_NOPE_BLOCKS=BLOCKS, GROUP_SIZE=GROUP,
            DIM_NOPE=NOPE, DIM_ROPE=ROPE,
        )  # fmt: skip
        assert out[row].tolist() == [2.0 * code] * NOPE + [3.0] * ROPE


V4_NOPE, V4_TILE, V4_TILES, V4_PAGE = 448, 64, 7, 64
V4_BYTES = V4_NOPE + 2 * ROPE
V4_PAGE_BYTES = V4_PAGE * (V4_BYTES + 8)


@pytest.mark.guards("30859-dsv4-paged")
@given(row=adapter.draw_first_row(V4_NOPE + ROPE), code=SMALL)
def test_a_paged_key_of_deepseek_v4_is_written_to_its_row(row: int, code: int) -> None:
    with checking.checked() as check:
        out = adapter.make_wide_rows(row, V4_NOPE + ROPE, torch.bfloat16, check.device)
        codes = torch.full((V4_PAGE_BYTES,), float(code), device=check.device).to(FP8)
        rope = torch.full((V4_PAGE_BYTES // 2,), 3.0, dtype=torch.bfloat16, device=check.device)
        scales = torch.full((V4_PAGE_BYTES,), 128, dtype=torch.uint8, device=check.device)
        table = checking.virtual_zeros((row + 1,), torch.int32, check.device)
        table[row] = 5
        launch_kernel(
            check, "_dequantize_k_cache_paged_kernel of 30859-dsv4-paged", (row + 1,), [(row,)],
            output_ptr=out, buf_fp8_ptr=codes, buf_bf16_ptr=rope, buf_uint8_ptr=scales,
            page_table_ptr=table, output_stride_0=out.stride(0), num_tokens=row + 1,
            BYTES_PER_PAGE=V4_PAGE_BYTES, PAGE_SIZE=V4_PAGE, DIM_NOPE=V4_NOPE, DIM_ROPE=ROPE,
            TILE_SIZE=V4_TILE, NUM_SCALE_TILES=V4_TILES, NOPE_ROPE_BYTES=V4_BYTES,
            PADDED_SCALE_PER_TOKEN=8, S_OFFSET_BYTES=V4_PAGE * V4_BYTES, TOKENS_PER_PROG=1,
        )  # fmt: skip
        assert out[row].tolist() == [2.0 * code] * V4_NOPE + [3.0] * ROPE


@pytest.mark.guards("39948-flashmla")
@given(page=adapter.draw_first_row(V4_PAGE_BYTES), place=st.integers(0, V4_PAGE - 1), power=SMALL)
def test_a_key_is_stored_into_its_own_page(page: int, place: int, power: int) -> None:
    with checking.checked() as check:
        keys = torch.full((1, 512), float(2**power), dtype=torch.bfloat16, device=check.device)
        codes = adapter.make_wide_rows(page, V4_PAGE_BYTES, FP8, check.device)
        rope = adapter.make_wide_rows(page, V4_PAGE_BYTES // 2, torch.bfloat16, check.device)
        scales = adapter.make_wide_rows(page, V4_PAGE_BYTES, torch.uint8, check.device)
        launch_kernel(
            check, "_triton_fused_store_flashmla_kernel", (1, V4_TILES + 1),
            input_ptr=keys, cache_fp8_ptr=codes, cache_bf16_ptr=rope, cache_u8_ptr=scales,
            indices_ptr=torch.tensor([page * V4_PAGE + place], device=check.device), N=1,
            PAGE_SIZE=V4_PAGE, BYTES_PER_PAGE=V4_PAGE_BYTES, S_OFFSET=V4_PAGE * V4_BYTES,
            BYTES_PER_PAGE_BF16=V4_PAGE_BYTES // 2, TILE_SIZE=V4_TILE, HEAD_DIM=512,
            NOPE_DIM=V4_NOPE, SLOT_BYTES=V4_BYTES, BF16_SLOT_ELEMS=V4_BYTES // 2,
            BF16_ROPE_OFFSET=V4_NOPE // 2, SCALES_PER_TOKEN=8, ROPE_TILE_ID=V4_TILES,
            UE8M0_BIAS=127, FP8_MIN=-448.0, FP8_MAX=448.0, EPS=1e-8,
        )  # fmt: skip
        # The scale is the power of two that brings the value to at most 448: to 256.
        at, scale_at = place * V4_BYTES, V4_PAGE * V4_BYTES + place * 8
        assert codes[page, at : at + V4_NOPE].tolist() == [256.0] * V4_NOPE
        assert scales[page, scale_at : scale_at + V4_TILES].tolist() == [119 + power] * V4_TILES
        assert rope[page, (at + V4_NOPE) // 2 :][:ROPE].tolist() == [float(2**power)] * ROPE


INDEX, INDEX_PAGE = 128, 64
INDEX_BYTES = INDEX_PAGE * (INDEX + 4)


@pytest.mark.guards("39948-indexer")
@given(page=adapter.draw_first_row(INDEX_BYTES), place=st.integers(0, INDEX_PAGE - 1), value=SMALL)
def test_an_index_key_is_stored_into_its_own_page(page: int, place: int, value: int) -> None:
    with checking.checked() as check:
        keys = torch.full((1, INDEX), float(value), dtype=torch.bfloat16, device=check.device)
        codes = adapter.make_wide_rows(page, INDEX_BYTES, FP8, check.device)
        scales = adapter.make_wide_rows(page, INDEX_BYTES // 4, torch.float32, check.device)
        launch_kernel(
            check, "_triton_fused_store_indexer_kernel", (1,),
            input_ptr=keys, cache_fp8_ptr=codes, cache_f32_ptr=scales,
            indices_ptr=torch.tensor([page * INDEX_PAGE + place], device=check.device), N=1,
            PAGE_SIZE=INDEX_PAGE, BYTES_PER_PAGE=INDEX_BYTES, BYTES_PER_PAGE_F32=INDEX_BYTES // 4,
            SCALE_PAGE_OFFSET_F32=INDEX_PAGE * INDEX // 4, HEAD_DIM=INDEX, PRESHUFFLE_TILE=0,
            FP8_MIN=-448.0, FP8_MAX=448.0, EPS=1e-8,
        )  # fmt: skip
        assert codes[page, place * INDEX :][:INDEX].tolist() == [448.0] * INDEX
        scale = float(scales[page, INDEX_PAGE * INDEX // 4 + place])
        assert scale == pytest.approx(value / 448)


@pytest.mark.guards("37666")
@given(page=adapter.draw_first_row(INDEX_BYTES), token=st.integers(0, INDEX_PAGE - 1), value=SMALL)
def test_an_index_key_is_gathered_from_its_own_page(page: int, token: int, value: int) -> None:
    with checking.checked() as check:
        codes = adapter.make_wide_rows(page, INDEX_BYTES, torch.uint8, check.device)
        scales = adapter.make_wide_rows(page, INDEX_BYTES // 4, torch.float32, check.device)
        codes[page, token * INDEX : (token + 1) * INDEX] = value
        scales[page, INDEX_PAGE * INDEX // 4 + token] = float(value)
        out = torch.zeros((INDEX_PAGE, INDEX), dtype=torch.uint8, device=check.device)
        out_scales = torch.zeros(INDEX_PAGE, device=check.device)
        launch_kernel(
            check, "_gather_index_k_scale_prefix_into_kernel", (INDEX_PAGE,), [(token,)],
            buf_u8_ptr=codes, buf_fp32_ptr=scales, k_out_ptr=out, scale_out_ptr=out_scales,
            page_indices_ptr=torch.tensor([page], dtype=torch.int32, device=check.device),
            PAGE_SIZE=INDEX_PAGE, BUF_NUMEL_PER_PAGE=INDEX_BYTES, HEAD_DIM=INDEX,
            S_OFFSET_NBYTES_IN_PAGE=INDEX_PAGE * INDEX, PRESHUFFLE_TILE=0, BLOCK_D=INDEX,
        )  # fmt: skip
        assert out[token].tolist() == [value] * INDEX
        assert float(out_scales[token]) == float(value)


# Captured tables with the maximum of rows and columns


CONTEXT, LONGEST, PAGE = 2**20, 16, 4


def make_tables(requests: int, rows_each: int, device: torch.device) -> dict[str, object]:
    """Return requests' tokens, and two tables with as many rows as they have."""
    wide, rows = torch.int32, requests * rows_each
    return {
        "seq_lens": torch.full((requests,), LONGEST, dtype=wide, device=device),
        "extend_seq_lens": torch.full((requests,), rows_each, dtype=wide, device=device),
        "req_pool_indices": torch.zeros(requests, dtype=wide, device=device),
        "req_to_token": torch.arange(LONGEST, dtype=wide, device=device)[None] * 4,
        "page_table_1": checking.virtual_zeros((rows, CONTEXT), wide, device),
        "real_page_table": checking.virtual_zeros((rows, CONTEXT // PAGE), wide, device),
        **dict.fromkeys(
            ("cache_seqlens", "cu_seqlens_k", "dsa_cache_seqlens", "dsa_cu_seqlens_k",
             "seqlens_expanded"),
            torch.zeros(4 * requests + 4, dtype=wide, device=device),
        ),
        "seq_lens_stride": 1, "extend_seq_lens_stride": 1, "req_pool_indices_stride": 1,
        "req_to_token_stride_0": LONGEST, "req_to_token_stride_1": 1,
        "page_table_stride_0": CONTEXT, "page_table_stride_1": 1,
        "real_page_table_stride_0": CONTEXT // PAGE, "real_page_table_stride_1": 1,
        "bs": requests, "max_len": LONGEST, "max_seqlen_k": LONGEST, "total_len": rows,
        "dsa_index_topk": 2048, "real_page_size": PAGE, "physical_page_size": PAGE,
        "next_n": rows_each, "HAS_REAL_PAGE_TABLE": True, "HAS_PAGE_TABLE_1": True,
        "HAS_PAGED_MQA_CTX_LENS": False, "STATIC_EXTEND_LEN": True, "paged_mqa_ctx_lens_2d": None,
        "paged_mqa_ctx_lens_stride_0": 1, "paged_mqa_ctx_lens_stride_1": 1, "BLOCK_BS": 2,
        "BLOCK_EXPANDED": 2, "BLOCK_ROWS": 2, "BLOCK_N": LONGEST,
    }  # fmt: skip


def assert_written(tables: dict[str, torch.Tensor], row: int) -> None:
    assert tables["page_table_1"][row, :LONGEST].tolist() == [4 * n for n in range(LONGEST)]
    pages = LONGEST // PAGE
    assert tables["real_page_table"][row, :pages].tolist() == [4 * n for n in range(pages)]


@pytest.mark.guards("dsa-metadata-decode-int64")
@given(row=adapter.draw_first_row(CONTEXT))
def test_a_decoding_request_gets_its_own_row_of_the_tables(row: int) -> None:
    with checking.checked() as check:
        tables = make_tables(row + 1, 1, check.device)
        launch_kernel(
            check, "_fused_dsa_decode_metadata_kernel", (row + 2,), [(row + 1,)], **tables
        )
        assert_written(tables, row)


@pytest.mark.guards("dsa-metadata-draft-extend-int64")
@given(request=adapter.draw_first_row(2 * CONTEXT))
def test_an_extended_draft_gets_its_own_rows_of_the_tables(request: int) -> None:
    with checking.checked() as check:
        tables = make_tables(request + 1, 2, check.device)
        launch_kernel(
            check, "_fused_dsa_draft_extend_metadata_kernel", (request + 2,), [(request + 1,)],
            **tables,
        )  # fmt: skip
        assert_written(tables, 2 * request)
        assert_written(tables, 2 * request + 1)


@pytest.mark.guards("dsa-metadata-verify-int64")
@given(row=adapter.draw_first_row(CONTEXT))
def test_a_verified_token_gets_its_own_row_of_the_tables(row: int) -> None:
    with checking.checked() as check:
        requests = row // 2 + 1
        tables = make_tables(requests, 2, check.device)
        launch_kernel(
            check, "_fused_dsa_target_verify_metadata_kernel", (2 * requests + 1,), [(row + 1,)],
            **tables,
        )  # fmt: skip
        assert_written(tables, row)
