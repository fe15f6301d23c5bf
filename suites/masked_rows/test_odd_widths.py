"""Rows whose width is no multiple of the block, and rows with a stride larger than their width.

THE INVARIANTS IN PLAIN WORDS
- A program writes the columns of its row, and none of the next row's.
- A row is addressed by the stride, not by the width.
- A token's sum includes every expert that it was routed to, the first one too.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.kernel_launches import get_real_kernel, launch_kernel, make_ints
from harness import checking

SMALL = st.integers(1, 8)


@pytest.mark.guards("sgemm-lora-b-columns")
@given(columns=st.integers(1, 40), tokens=st.integers(1, 3), value=SMALL)
def test_an_adapters_product_stays_in_its_columns(columns: int, tokens: int, value: int) -> None:
    rank = 16
    with checking.checked() as check:
        small = torch.full((tokens, rank), float(value), dtype=torch.float16, device=check.device)
        weights = torch.ones((1, columns, rank), dtype=torch.float16, device=check.device)
        out = torch.ones((tokens, columns), dtype=torch.float16, device=check.device)
        launch_kernel(
            check, "_sgemm_lora_b_kernel", (-(-columns // 16), 1), x=small, weights=weights,
            output=out, N=columns, K=rank, x_stride_0=rank, x_stride_1=1,
            w_stride_0=columns * rank, w_stride_1=rank, w_stride_2=1, output_stride_0=columns,
            output_stride_1=1, seg_lens=make_ints(check.device, tokens),
            sorted_token_ids=None,
            seg_indptr=make_ints(check.device, 0, tokens),
            weight_indices=make_ints(check.device, 0),
            lora_ranks=make_ints(check.device, rank), SORTED_BY_ADAPTER=False, BLOCK_S=16,
            BLOCK_N=16,
            BLOCK_K=16, scalings=torch.ones(1, device=check.device),
        )  # fmt: skip
        assert out.unique().tolist() == [1.0 + rank * value]


@pytest.mark.guards("topk-merge-width")
@given(wanted=st.integers(1, 4), requests=st.integers(1, 3))
def test_merged_blocks_stay_in_their_row(wanted: int, requests: int) -> None:
    lanes = 4
    with checking.checked() as check:
        scores = torch.arange(lanes, 0, -1, dtype=torch.float32, device=check.device)
        out = torch.full((1, requests, wanted), -9, dtype=torch.int32, device=check.device)
        launch_kernel(
            check, "_topk_index_merge_kernel", (requests, 1), ti_final_ptr=out,
            ts_partial_ptr=scores.repeat(requests), ti_partial_ptr=make_ints(
                check.device, *range(1, lanes + 1)
            ).repeat(requests),
            seq_lens=make_ints(check.device, *[2 * lanes] * requests), block_size=2,
            topk=wanted, stride_ts_c=0, stride_ts_h=0, stride_ts_b=lanes, stride_ts_t=1,
            stride_ti_c=0, stride_ti_h=0, stride_ti_b=lanes, stride_ti_t=1, stride_tif_h=0,
            stride_tif_b=wanted, stride_tif_t=1, NUM_TOPK_CHUNKS=1, BLOCK_SIZE_K=2 * lanes,
            BLOCK_SIZE_T=lanes,
        )  # fmt: skip
        assert out.tolist() == [[list(range(wanted))] * requests]


@pytest.mark.guards("22312")
@given(tokens=st.integers(1, 3), heads=st.integers(1, 9), apart=st.integers(0, 5))
def test_gates_are_read_from_rows_that_lie_apart(tokens: int, heads: int, apart: int) -> None:
    with checking.checked() as check:
        whole = torch.arange(tokens * 2 * (heads + apart), dtype=torch.float32, device=check.device)
        merged = whole.reshape(tokens, -1) / 16 - 1
        a, b = merged[:, :heads], merged[:, heads : 2 * heads]
        rate, bias = (torch.full((heads,), each, device=check.device) for each in (0.5, 0.25))
        decay, beta = get_real_kernel("fused_gdn_gating")(rate, a, b, bias)
        expected = -rate.exp() * torch.nn.functional.softplus(a + bias)
        torch.testing.assert_close(decay[0], expected)
        torch.testing.assert_close(beta[0].float(), b.sigmoid())


@pytest.mark.guards("topk-table-stride")
@given(requests=st.integers(1, 3), width=st.integers(1, 6), apart=st.integers(0, 4), data=st.data())
def test_chosen_keys_are_looked_up_in_a_cut_out_of_the_table(
    requests: int, width: int, apart: int, data: st.DataObject
) -> None:
    with checking.checked() as check:
        numbers = range(100, 100 + requests * (width + apart))
        table = make_ints(check.device, *numbers).reshape(requests, -1)[:, :width]
        chosen = torch.full((requests, 2048), -1, dtype=torch.int32, device=check.device)
        place = st.lists(st.integers(-1, width - 1), min_size=4, max_size=4)
        for request in range(requests):
            chosen[request, :4] = make_ints(check.device, *data.draw(place))
        found = get_real_kernel("transform_index_page_table_decode_fast")(table, chosen)
        expected = table.gather(1, chosen.clamp(min=0).long()[:, :4]).where(chosen[:, :4] >= 0, -1)
        assert found[:, :4].tolist() == expected.tolist()


@pytest.mark.guards("ep-post-reorder-expert-0")
@given(experts=st.lists(st.integers(-1, 3), min_size=1, max_size=4))
def test_every_expert_of_a_token_is_in_its_sum(experts: list[int]) -> None:
    hidden, many = 16, len(experts)
    with checking.checked() as check:
        rows = torch.arange(1, many + 1, device=check.device)[:, None].expand(many, hidden)
        out = torch.empty((1, hidden), device=check.device)
        launch_kernel(
            check, "post_reorder_triton_kernel", (1,), down_output_ptr=rows.float().contiguous(),
            output_ptr=out, src2dst_ptr=make_ints(check.device, *range(many)),
            topk_ids_ptr=make_ints(check.device, *experts), topk=many, hidden_size=hidden,
            topk_weights_ptr=torch.ones(many, device=check.device), BLOCK_SIZE=hidden,
        )  # fmt: skip
        total = sum(row for row, expert in enumerate(experts, start=1) if expert >= 0)
        assert out[0].tolist() == [float(total)] * hidden
