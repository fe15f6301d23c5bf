"""Rows addressed by a product: token times stride, batch times split, row times vocabulary.

THE INVARIANTS IN PLAIN WORDS
- A program reads its own row and writes its own row, however many elements lie before it: below
  2^31 and 2^32, across them, and beyond.
- A row's location does not change the result.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import wide_rows as adapter
from fixtures.kernel_launches import launch_kernel
from harness import checking

NOPE, ROPE, GROUP = 512, 64, 128
BLOCKS = NOPE // GROUP
FP8 = torch.float8_e4m3fn
SMALL = st.integers(1, 8)


@pytest.mark.guards("30859-dsa-dequant")
@given(row=adapter.draw_first_row(NOPE), code=SMALL, scale=SMALL)
def test_a_key_is_read_back_from_its_own_row(row: int, code: int, scale: int) -> None:
    with checking.checked() as check:
        out = adapter.make_wide_rows(row, NOPE + ROPE, torch.bfloat16, check.device)
        codes = adapter.make_wide_rows(row, NOPE, FP8, check.device)
        scales = adapter.make_wide_rows(row, BLOCKS, torch.float32, check.device)
        rope = adapter.make_wide_rows(row, ROPE, torch.bfloat16, check.device)
        codes[row], scales[row], rope[row] = float(code), float(scale), 3.0
        launch_kernel(
            check, "_dequantize_k_cache_fast_kernel", (row + 1, BLOCKS + 1),
            [(row, block) for block in range(BLOCKS + 1)],
            output_ptr=out, input_nope_q_ptr=codes, input_nope_s_ptr=scales, input_rope_ptr=rope,
            output_stride_0=out.stride(0), input_nope_q_stride_0=codes.stride(0),
            input_nope_s_stride_0=scales.stride(0), input_rope_stride_0=rope.stride(0),
            NUM_NOPE_BLOCKS=BLOCKS, GROUP_SIZE=GROUP, DIM_NOPE=NOPE, DIM_ROPE=ROPE,
        )  # fmt: skip
        assert out[row].tolist() == [float(code * scale)] * NOPE + [3.0] * ROPE


@pytest.mark.guards("30859-dsa-quant")
@given(row=adapter.draw_first_row(NOPE), value=SMALL)
def test_a_key_is_quantised_into_its_own_row(row: int, value: int) -> None:
    with checking.checked() as check:
        codes = adapter.make_wide_rows(row, NOPE, FP8, check.device)
        scales = adapter.make_wide_rows(row, BLOCKS, torch.float32, check.device)
        out_rope = adapter.make_wide_rows(row, ROPE, torch.bfloat16, check.device)
        nope = adapter.make_wide_rows(row, NOPE, torch.bfloat16, check.device)
        rope = adapter.make_wide_rows(row, ROPE, torch.bfloat16, check.device)
        nope[row], rope[row] = float(value), 3.0
        launch_kernel(
            check, "_quantize_k_cache_fast_kernel", (row + 1, BLOCKS + 1),
            [(row, block) for block in range(BLOCKS + 1)],
            output_nope_q_ptr=codes, output_nope_s_ptr=scales, output_rope_ptr=out_rope,
            k_nope_ptr=nope, k_rope_ptr=rope, output_nope_q_stride_0=codes.stride(0),
            output_nope_s_stride_0=scales.stride(0), output_rope_stride_0=out_rope.stride(0),
            k_nope_stride_0=nope.stride(0), k_rope_stride_0=rope.stride(0),
            NUM_NOPE_BLOCKS=BLOCKS, GROUP_SIZE=GROUP, DIM_NOPE=NOPE, DIM_ROPE=ROPE,
            FP8_MIN=-448.0, FP8_MAX=448.0,
        )  # fmt: skip
        assert codes[row].float().tolist() == [448.0] * NOPE
        assert scales[row].tolist() == pytest.approx([value / 448] * BLOCKS)
        assert out_rope[row].tolist() == [3.0] * ROPE


@pytest.mark.guards("30859-dsv4-quant")
@given(row=adapter.draw_first_row(NOPE), value=SMALL)
def test_a_key_of_deepseek_v4_is_quantised_into_its_own_row(row: int, value: int) -> None:
    tiles, size, nope = 7, 64, 448
    with checking.checked() as check:
        keys = adapter.make_wide_rows(row, nope + ROPE, torch.bfloat16, check.device)
        codes = adapter.make_wide_rows(row, nope, FP8, check.device)
        rope = adapter.make_wide_rows(row, ROPE, torch.bfloat16, check.device)
        scales = adapter.make_wide_rows(row, 8, torch.uint8, check.device)
        keys[row] = float(2**value)
        launch_kernel(
            check, "_quant_k_cache_fused_kernel", (row + 1, tiles + 1),
            [(row, tile) for tile in range(tiles + 1)],
            k_bf16_ptr=keys, k_nope_fp8_ptr=codes, k_rope_bf16_ptr=rope,
            scale_k_nope_uint8_ptr=scales, k_bf16_stride_0=keys.stride(0),
            k_nope_fp8_stride_0=codes.stride(0), k_rope_bf16_stride_0=rope.stride(0),
            scale_stride_0=scales.stride(0), DIM_NOPE=nope, DIM_ROPE=ROPE, TILE_SIZE=size,
            NUM_TILES=tiles, FP8_MIN=-448.0, FP8_MAX=448.0, EPS=1e-8,
        )  # fmt: skip
        # The scale is the power of two that brings the value to at most 448: to 256.
        assert codes[row].float().tolist() == [256.0] * nope
        assert scales[row, :tiles].tolist() == [127 + value - 8] * tiles
        assert rope[row].tolist() == [float(2**value)] * ROPE


@pytest.mark.guards("28788-stage2")
@given(batch=adapter.draw_first_row(2**20), first=SMALL, second=SMALL)
def test_partial_results_are_joined_from_their_own_batch(
    batch: int, first: int, second: int
) -> None:
    heads, splits, size = 1, 2, 16
    with checking.checked() as check:
        parts = adapter.make_wide_rows(batch, 2**20, torch.float32, check.device)
        weights = adapter.make_wide_rows(batch, 2**20 // size, torch.float32, check.device)
        out = adapter.make_wide_rows(batch, size, torch.float32, check.device)
        starts = checking.virtual_zeros((batch + 2,), torch.int32, check.device)
        counts = checking.virtual_zeros((batch + 1,), torch.int32, check.device)
        starts[batch], starts[batch + 1], counts[batch] = 0, 64, splits
        parts[batch, :size], parts[batch, size : 2 * size] = float(first), float(second)
        weights[batch, :splits] = 0.0  # equal probabilities, so the result is the mean of the two
        launch_kernel(
            check, "_fwd_kernel_stage2", (batch + 1, heads), [(batch, 0)],
            Mid_O=parts, Mid_O_1=weights, O=out, v_scale=1.0, kv_indptr=starts,
            num_kv_splits=counts, sink_ptr=None, stride_mid_ob=2**20, stride_mid_oh=splits * size,
            stride_mid_os=size, stride_obs=size, stride_oh=size, MAX_KV_SPLITS=splits,
            MIN_BLOCK_KV=32, BLOCK_DV=size, Lv=size, HAS_SINK=False,
        )  # fmt: skip
        assert out[batch].tolist() == pytest.approx([(first + second) / 2] * size)


@pytest.mark.guards("35188")
@given(row=adapter.draw_first_row(6144), value=SMALL)
def test_a_token_is_copied_to_its_own_row_among_the_experts(row: int, value: int) -> None:
    hidden = 6144
    with checking.checked() as check:
        tokens = torch.full((1, hidden), float(value), dtype=torch.bfloat16, device=check.device)
        out = adapter.make_wide_rows(row, hidden, torch.bfloat16, check.device)
        places = torch.tensor([[row]], dtype=torch.int32, device=check.device)
        experts = torch.zeros((1, 1), dtype=torch.int32, device=check.device)
        launch_kernel(
            check, "pre_reorder_triton_kernel_for_cutlass_moe", (1, hidden // 1024),
            [(0, block) for block in range(hidden // 1024)],
            input_ptr=tokens, gateup_input_ptr=out, src2dst_ptr=places, topk_ids_ptr=experts,
            a1_scales_ptr=None, num_local_experts=8, topk=1, num_tokens=1, hidden_size=hidden,
            BLOCK_SIZE=1024, NUM_STAGES=1,
        )  # fmt: skip
        assert out[row].tolist() == [float(value)] * hidden


VOCABULARY = 2**17


@pytest.mark.guards("35571-partial-sum")
@given(row=adapter.draw_first_row(VOCABULARY), pivot=SMALL)
def test_small_probabilities_are_dropped_from_their_own_row(row: int, pivot: int) -> None:
    block = 1024
    with checking.checked() as check:
        likely = adapter.make_wide_rows(row, VOCABULARY, torch.float32, check.device)
        out = adapter.make_wide_rows(row, VOCABULARY, torch.float32, check.device)
        pivots = checking.virtual_zeros((row + 1,), torch.float32, check.device)
        sums = adapter.make_wide_rows(row, VOCABULARY // block, torch.float32, check.device)
        likely[row, :block], pivots[row] = torch.arange(block).float(), float(pivot)
        launch_kernel(
            check, "_mask_and_partial_sum_kernel", (row + 1, VOCABULARY // block), [(row, 0)],
            probs_ptr=likely, pivots_ptr=pivots, out_ptr=out, partial_sums_ptr=sums,
            vocab_size=VOCABULARY, num_chunks=VOCABULARY // block, BLOCK_SIZE=block,
        )  # fmt: skip
        expected = [float(n) if n >= pivot else 0.0 for n in range(block)]
        assert out[row, :block].tolist() == expected
        assert float(sums[row, 0]) == sum(expected)


@pytest.mark.guards("35571-normalize")
@given(block=adapter.draw_first_row(1024), total=SMALL)
def test_probabilities_are_divided_by_the_sum_of_their_own_row(block: int, total: int) -> None:
    size = 1024
    with checking.checked() as check:
        out = checking.virtual_zeros(((block + 1) * size,), torch.float32, check.device)
        row = block * size // VOCABULARY
        sums = checking.virtual_zeros((row + 2,), torch.float32, check.device)
        out[block * size :], sums[row] = float(total), float(total)
        launch_kernel(
            check, "_normalize_kernel", (block + 1,), [(block,)],
            out_ptr=out, row_sums_ptr=sums, numel=out.numel(), vocab_size=VOCABULARY,
            BLOCK_SIZE=size,
        )  # fmt: skip
        assert out[block * size :].tolist() == [1.0] * size
