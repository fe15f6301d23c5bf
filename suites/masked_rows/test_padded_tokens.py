"""Batches padded to the size of a captured graph, shares padded to whole blocks.

THE INVARIANTS IN PLAIN WORDS
- Padding reads nothing before or behind its inputs, has a length of zero, and is stored nowhere.
- The results for the real tokens do not depend on the padding.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import delta_states
from fixtures.kernel_launches import launch_kernel, make_ints
from harness import checking

SMALL = st.integers(1, 8)
LENGTHS = st.lists(st.integers(1, 9), min_size=2, max_size=2)  # shorter than a draft: padding


def count_visible_keys(lengths: list[int], asking: int) -> list[int]:
    """Return how many keys each token of each request sees: itself and those before it, or none."""
    return [max(0, length - asking + 1 + n) for length in lengths for n in range(asking)]


@pytest.mark.guards("30378-expand")
@given(lengths=LENGTHS, asking=st.integers(1, 4))
def test_no_token_sees_fewer_keys_than_none(lengths: list[int], asking: int) -> None:
    with checking.checked() as check:
        out = torch.full((2 * asking,), -7, dtype=torch.int32, device=check.device)
        launch_kernel(
            check, "seqlens_expand_kernel", (2,), N=2, BLOCK=4, output_ptr=out,
            extend_seq_lens_ptr=make_ints(check.device, asking, asking),
            seq_lens_ptr=make_ints(check.device, *lengths),
            offsets_ptr=make_ints(check.device, 0, asking, 2 * asking),
        )  # fmt: skip
        assert out.tolist() == count_visible_keys(lengths, asking)


@pytest.mark.guards("30378-draft-extend")
@given(lengths=LENGTHS, asking=st.integers(1, 4))
def test_no_extended_draft_sees_fewer_keys_than_none(lengths: list[int], asking: int) -> None:
    with checking.checked() as check:
        out = {
            name: torch.full((many,), -7, dtype=torch.int32, device=check.device)
            for name, many in (
                ("cache_seqlens", 2), ("cu_seqlens_k", 3), ("seqlens_expanded", 2 * asking),
                ("dsa_cache_seqlens", 2 * asking), ("dsa_cu_seqlens_k", 2 * asking + 1),
            )
        }  # fmt: skip
        table = make_ints(check.device, *range(16))
        launch_kernel(
            check, "_fused_dsa_draft_extend_metadata_kernel", (1,), **out,
            seq_lens=make_ints(check.device, *lengths), req_pool_indices=table, req_to_token=table,
            extend_seq_lens=make_ints(check.device, asking, asking), page_table_1=None,
            real_page_table=None, seq_lens_stride=1, extend_seq_lens_stride=1,
            req_pool_indices_stride=1, req_to_token_stride_0=16, req_to_token_stride_1=1,
            page_table_stride_0=16, page_table_stride_1=1, real_page_table_stride_0=16,
            real_page_table_stride_1=1, bs=2, total_len=2 * asking, max_seqlen_k=16,
            dsa_index_topk=6, real_page_size=4, physical_page_size=4, HAS_REAL_PAGE_TABLE=False,
            HAS_PAGE_TABLE_1=False, STATIC_EXTEND_LEN=True, BLOCK_BS=2, BLOCK_EXPANDED=8,
            BLOCK_ROWS=4, BLOCK_N=16,
        )  # fmt: skip
        expected = count_visible_keys(lengths, asking)
        chosen = [min(length, 6) for length in expected]
        assert out["seqlens_expanded"].tolist() == expected
        assert out["dsa_cache_seqlens"].tolist() == chosen
        assert out["dsa_cu_seqlens_k"].tolist() == [sum(chosen[:n]) for n in range(len(chosen) + 1)]


@pytest.mark.guards("delta-chunk-padded-rows")
@given(slot=st.integers(-1, 2), value=SMALL)
def test_a_padded_row_begins_with_nothing_and_leaves_nothing(slot: int, value: int) -> None:
    with checking.checked() as check:
        states = torch.full((3, delta_states.CHUNKED), float(value), device=check.device)
        begun = delta_states.run_chunk_kernel(check, states, slot)
        assert begun.unique().tolist() == [0.0 if slot < 0 else float(value)]
        assert states.unique().tolist() == [float(value)]


HEADS, WIDTH, PAGE = 1, 64, 128


@pytest.mark.guards("35351-store")
@given(slots=st.lists(st.sampled_from([0, 0, 5, 9]), min_size=1, max_size=3), value=SMALL)
def test_a_padded_token_is_stored_nowhere(slots: list[int], value: int) -> None:
    slots = list(dict.fromkeys(slots)) + [0] * slots.count(0)
    many, scales = len(slots), WIDTH // 32
    with checking.checked() as check:
        rows = torch.full((many, HEADS, WIDTH), float(2**value), dtype=torch.bfloat16,
                          device=check.device)  # fmt: skip
        caches = [torch.ones((PAGE, WIDTH), device=check.device).to(torch.float8_e4m3fn)
                  for _ in "kv"]  # fmt: skip
        sf_caches = [
            torch.zeros(PAGE * scales, dtype=torch.uint8, device=check.device) for _ in "kv"
        ]
        launch_kernel(
            check, "_mxfp8_quant_store_qkv_kernel", (many, 3 * HEADS), q_ptr=rows, k_ptr=rows,
            v_ptr=rows, loc_ptr=torch.tensor(slots, device=check.device), sqt=WIDTH, sqh=WIDTH,
            q8_ptr=torch.empty((many, WIDTH), device=check.device).to(torch.float8_e4m3fn),
            sfq_ptr=torch.empty((many, scales), dtype=torch.uint8, device=check.device),
            kc_ptr=caches[0], vc_ptr=caches[1], sfk_ptr=sf_caches[0], sfv_ptr=sf_caches[1],
            skt=WIDTH, skh=WIDTH, svt=WIDTH, svh=WIDTH, NQ=HEADS, NKV=HEADS, D=WIDTH, PAGE=PAGE,
        )  # fmt: skip
        for cache in caches:
            assert cache[0].float().unique().tolist() == [1.0]
            for slot in set(slots) - {0}:
                assert cache[slot].float().unique().tolist() == [256.0]


@pytest.mark.guards("35351-scales")
@given(slots=st.lists(st.sampled_from([0, 0, 5, 9, 140]), min_size=1, max_size=3), value=SMALL)
def test_a_padded_tokens_scales_are_stored_nowhere(slots: list[int], value: int) -> None:
    slots = list(dict.fromkeys(slots)) + [0] * slots.count(0)
    with checking.checked() as check:
        out = torch.full((2, PAGE), -1, dtype=torch.int32, device=check.device)
        launch_kernel(
            check, "_store_sf_interleaved_kernel", (1,), sf_in_ptr=make_ints(check.device, *slots),
            sf_out_ptr=out, loc_ptr=torch.tensor(slots, device=check.device),
            num_tokens=len(slots), nheads=1, page_size=PAGE, BLOCK_T=8,
        )  # fmt: skip
        expected = torch.full((2, PAGE), -1, dtype=torch.int32)
        for slot in set(slots) - {0}:
            place = slot % PAGE
            expected[slot // PAGE, place % 32 * 4 + place // 32] = slot
        assert out.tolist() == expected.tolist()


@pytest.mark.guards("compressed-metadata-padding")
@given(written=st.integers(1, 4), rows=st.integers(4, 5), length=st.integers(1, 300))
def test_metadata_has_places_for_the_tokens_that_are_written(
    written: int, rows: int, length: int
) -> None:
    with checking.checked() as check:
        lengths = make_ints(check.device, *[length] * rows)
        own = {f"{kind}_{name}_ptr": torch.zeros_like(lengths)
               for kind in ("c4", "c128")
               for name in ("positions", "seq_lens_raw", "seq_lens_clamp1")}  # fmt: skip
        places = {f"{kind}_out_loc_ptr": torch.zeros_like(lengths[:written])
                  for kind in ("c4", "c128")}  # fmt: skip
        launch_kernel(
            check, "_init_compressed_attn_metadata_kernel", (rows,), seq_lens_ptr=lengths,
            positions_ptr=lengths - 1, raw_out_loc_ptr=make_ints(check.device, *[900] * written),
            page_table_ptr=lengths, **own, **places, c128_page_indices_ptr=lengths, bs=rows,
            num_write_tokens=written, max_pages=1, c128_cur_max_seq_len=1, c128_page_size=2,
            BLOCK_SIZE=1, COMPUTE_PAGE_INDICES=False,
        )  # fmt: skip
        assert own["c4_seq_lens_raw_ptr"].tolist() == [length // 4] * rows
        for kind, ratio in (("c4", 4), ("c128", 128)):
            place = 0 if length % ratio else 900 // ratio
            assert places[f"{kind}_out_loc_ptr"].tolist() == [place] * written


@pytest.mark.guards("dcp-empty-ranks")
@given(values=st.lists(st.one_of(st.none(), SMALL), min_size=2, max_size=2))
def test_what_no_rank_holds_comes_out_as_nought(values: list[int | None]) -> None:
    size = 16
    with checking.checked() as check:
        weights = [float("-inf") if value is None else 0.0 for value in values]
        parts = [[float(value or 0)] * size for value in values]
        out = torch.empty((1, 1, size), device=check.device)
        launch_kernel(
            check, "_dcp_lse_combine_kernel", (1, 1), out_ptr=out, out_lse_ptr=None,
            recv_output_ptr=torch.tensor(parts, device=check.device),
            recv_lse_ptr=torch.tensor(weights, device=check.device), recv_output_stride_N=size,
            recv_output_stride_B=size, recv_output_stride_H=size, recv_output_stride_D=1,
            recv_lse_stride_N=1, recv_lse_stride_B=1, recv_lse_stride_H=1, out_stride_B=size,
            out_stride_H=size, out_stride_D=1, N=2, HEAD_DIM=size, IS_BASE_E=True,
            RETURN_LSE=False,
        )  # fmt: skip
        present = [value for value in values if value is not None]
        assert out[0, 0].tolist() == [sum(present) / max(1, len(present))] * size


@pytest.mark.guards("33128")
@given(held=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_only_rows_that_hold_tokens_name_their_expert(held: list[int]) -> None:
    block = 8
    shares = [-(-many // block) * block for many in held]
    with checking.checked() as check:
        rows = torch.full((sum(shares),), -9, dtype=torch.int32, device=check.device)
        for expert in range(4):  # each program writes the start of all, with the same value
            launch_kernel(
                check, "_fwd_kernel_ep_scatter_1", (4,), [(expert,)], m_indices=rows,
                num_recv_tokens_per_expert=make_ints(check.device, *shares),
                num_valid_tokens_per_expert=make_ints(check.device, *held),
                expert_start_loc=make_ints(check.device, 0, 0, 0, 0), num_experts=4, BLOCK_E=block,
                BLOCK_EXPERT_NUM=4,
            )  # fmt: skip
        assert rows.tolist() == [
            expert if place < many else -1
            for expert, (many, share) in enumerate(zip(held, shares, strict=True))
            for place in range(share)
        ]
