"""States of requests, rows of experts and of residuals, past the 2^31st element.

THE INVARIANTS IN PLAIN WORDS
- A request's state is read from its own slot, saved in its own slot and written back to it.
- A token's row among the experts, in the bank of residuals or among merged projections is its own.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import delta_states
from fixtures.kernel_launches import launch_kernel
from fixtures.wide_rows import draw_first_row, make_wide_rows
from harness import checking

SMALL = st.integers(1, 8)
FAR = 2**20  # elements from one slot to the next, with all layers' states in one tensor


@pytest.mark.guards("mamba-track-int64")
@given(source=draw_first_row(FAR), target=draw_first_row(FAR), value=SMALL)
def test_a_tracked_state_is_copied_between_its_own_slots(
    source: int, target: int, value: int
) -> None:
    many = 16
    with checking.checked() as check:
        states = {
            name: checking.virtual_zeros(
                (max(source, target) + 2, FAR), torch.float32, check.device
            )
            for name in ("conv", "ssm")
        }
        target += source == target
        for state in states.values():
            state[source, :many] = float(value)
        launch_kernel(
            check, "track_mamba_state_if_needed_kernel", (1,),
            conv_states_ptr=states["conv"], ssm_states_ptr=states["ssm"],
            cache_indices_ptr=torch.tensor([source], dtype=torch.int32, device=check.device),
            mamba_track_indices_ptr=torch.tensor([target], dtype=torch.int32, device=check.device),
            mamba_track_mask_ptr=torch.ones(1, dtype=torch.bool, device=check.device),
            conv_state_stride_0=FAR, ssm_state_stride_0=FAR, conv_row_stride=FAR,
            ssm_row_stride=FAR, conv_layer_stride=0, ssm_layer_stride=0, batch_size=1,
            num_layers=1, conv_state_numel_per_row=many, ssm_state_numel_per_row=many,
            CONV_CHUNK=many, SSM_CHUNK=many, NUM_CONV_CHUNKS=1, NUM_SSM_CHUNKS=1, BS_POW2=1,
            BLOCK_SIZE=many, check_freed_slots=False,
        )  # fmt: skip
        for state in states.values():
            assert state[target, :many].tolist() == [float(value)] * many


@pytest.mark.guards("delta-chunk-slot-int64")
@given(slot=draw_first_row(delta_states.CHUNKED), value=SMALL)
def test_a_chunk_begins_with_the_state_of_its_own_slot(slot: int, value: int) -> None:
    with checking.checked() as check:
        states = make_wide_rows(slot, delta_states.CHUNKED, torch.float32, check.device)
        states[slot] = float(value)
        assert delta_states.run_chunk_kernel(check, states, slot).unique().tolist() == [
            float(value)
        ]


def of_steps(device: str, slot: int, kept: int, value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states with one filled slot, and space for those of each step."""
    states, steps = (
        make_wide_rows(rows, delta_states.RECURRENT, torch.float32, device) for rows in (slot, kept)
    )
    states[slot] = float(value)
    return states, steps


@pytest.mark.guards("31934")
@given(
    slot=draw_first_row(delta_states.RECURRENT),
    kept=draw_first_row(delta_states.RECURRENT),
    value=SMALL,
)
def test_a_step_reads_keeps_and_writes_states_in_their_own_slots(
    slot: int, kept: int, value: int
) -> None:
    with checking.checked() as check:
        states, steps = of_steps(check.device, slot, kept, value)
        delta_states.run_step(check, states, slot, steps, kept)
        assert steps[kept].unique().tolist() == [float(value)]


@pytest.mark.guards("delta-gating-slot-int64")
@given(
    slot=draw_first_row(delta_states.RECURRENT),
    kept=draw_first_row(delta_states.RECURRENT),
    value=SMALL,
)
def test_a_gated_step_reads_and_writes_the_state_of_its_own_slot(
    slot: int, kept: int, value: int
) -> None:
    with checking.checked() as check:
        states, steps = of_steps(check.device, slot, kept, value)
        assert delta_states.run_gated_step(check, states, slot, steps, kept) == float(value)


HIDDEN = 1024


@pytest.mark.guards("deepep-permute-int64")
@given(row=draw_first_row(HIDDEN), value=SMALL)
def test_a_token_is_sent_to_its_own_row_among_the_experts(row: int, value: int) -> None:
    with checking.checked() as check:
        tokens = torch.full((1, HIDDEN), float(value), dtype=torch.bfloat16, device=check.device)
        out = make_wide_rows(row, HIDDEN, torch.bfloat16, check.device)
        launch_kernel(
            check, "deepep_permute_triton_kernel", (1,), input_ptr=tokens, gateup_input_ptr=out,
            src2dst_ptr=torch.tensor([[row]], dtype=torch.int32, device=check.device),
            topk_ids_ptr=torch.zeros((1, 1), dtype=torch.int32, device=check.device),
            a1_scales_ptr=None, topk=1, hidden_size=HIDDEN, BLOCK_SIZE=HIDDEN,
        )  # fmt: skip
        assert out[row].unique().tolist() == [float(value)]


@pytest.mark.guards("deepep-post-reorder-int64")
@given(row=draw_first_row(HIDDEN), value=SMALL)
def test_a_token_is_summed_from_its_own_row_among_the_experts(row: int, value: int) -> None:
    with checking.checked() as check:
        computed = make_wide_rows(row, HIDDEN, torch.bfloat16, check.device)
        computed[row] = float(value)
        out = torch.zeros((1, HIDDEN), dtype=torch.bfloat16, device=check.device)
        launch_kernel(
            check, "deepep_post_reorder_triton_kernel", (1,), down_output_ptr=computed,
            output_ptr=out, topk=1, hidden_size=HIDDEN, routed_scaling_factor=1.0,
            src2dst_ptr=torch.tensor([[row]], dtype=torch.int32, device=check.device),
            topk_ids_ptr=torch.zeros((1, 1), dtype=torch.int32, device=check.device),
            topk_weights_ptr=torch.ones((1, 1), device=check.device), BLOCK_SIZE=HIDDEN,
        )  # fmt: skip
        assert out.unique().tolist() == [float(value)]


# A bank of residuals: one row of it and the prefix, for each token

WIDTH, BANK = 64, 2**16


@pytest.mark.guards("38912-score")
@given(token=draw_first_row(BANK), value=SMALL)
def test_residuals_are_scored_from_their_own_bank(token: int, value: int) -> None:
    with checking.checked() as check:
        prefix, bank, scores = (
            make_wide_rows(token, BANK, torch.float32, check.device) for _ in range(3)
        )
        prefix[token, :WIDTH], bank[token, :WIDTH] = -float(value), float(value)
        launch_kernel(
            check, "_score_kernel", (token + 1, 2), [(token, 0), (token, 1)], prefix_ptr=prefix,
            bank_ptr=bank, cw_ptr=torch.ones(WIDTH, device=check.device), scores_ptr=scores, NVB=1,
            eps=0.0, stride_pm=BANK, stride_bm=BANK, stride_bb=WIDTH, stride_sm=BANK, H=WIDTH,
            BLOCK_H=WIDTH,
        )  # fmt: skip
        # A row of equal values is normalised to ones or minus ones.
        assert scores[token, :2].tolist() == pytest.approx([WIDTH, -WIDTH])


@pytest.mark.guards("38912-combine")
@given(token=draw_first_row(BANK), first=SMALL, second=SMALL)
def test_residuals_are_mixed_from_their_own_bank(token: int, first: int, second: int) -> None:
    with checking.checked() as check:
        prefix, bank, scores, out = (
            make_wide_rows(token, BANK, torch.float32, check.device) for _ in range(4)
        )
        bank[token, :WIDTH], prefix[token, :WIDTH], scores[token, :2] = first, second, 1.0
        launch_kernel(
            check, "_combine_kernel", (token + 1, 1), [(token, 0)], prefix_ptr=prefix,
            bank_ptr=bank, scores_ptr=scores, out_ptr=out, NVB=1, stride_pm=BANK, stride_bm=BANK,
            stride_bb=WIDTH, stride_sm=BANK, stride_om=BANK, BLOCK_H=WIDTH, MAX_ROWS=2,
        )  # fmt: skip
        assert out[token, :WIDTH].tolist() == pytest.approx([(first + second) / 2] * WIDTH)


@pytest.mark.guards("attn-residual-hip-int64")
@given(token=draw_first_row(BANK), first=SMALL, second=SMALL)
def test_residuals_in_one_launch_come_from_their_own_bank(
    token: int, first: int, second: int
) -> None:
    with checking.checked() as check:
        prefix, bank, out = (
            make_wide_rows(token, BANK, torch.float32, check.device) for _ in range(3)
        )
        bank[token, :WIDTH], prefix[token, :WIDTH] = float(first), float(second)
        flat = torch.zeros(WIDTH, device=check.device)  # every row scores the same
        launch_kernel(
            check, "_agg_kernel", (token + 1,), [(token,)], prefix_ptr=prefix, addend_ptr=prefix,
            prefix_out_ptr=prefix, bank_ptr=bank, cw_ptr=flat, ow_ptr=flat, out_ptr=out,
            score_eps=1e-6, out_eps=1e-6, stride_pm=BANK, stride_am=BANK, stride_om=BANK,
            stride_bm=BANK, stride_bb=WIDTH, stride_o=BANK, H=WIDTH, BLOCK_H=WIDTH, NVB=1, R_PAD=2,
            HAS_ADD=False, WRITE_BANK=False, APPLY_OUT_NORM=False,
        )  # fmt: skip
        assert out[token, :WIDTH].tolist() == pytest.approx([(first + second) / 2] * WIDTH)


@pytest.mark.guards("36009")
@given(token=draw_first_row(BANK), value=SMALL)
def test_projections_are_packed_from_their_own_row(token: int, value: int) -> None:
    size = 16
    strides = {f"stride_{side}{part}{axis}": {"b": 0, "s": BANK, "h": size}[axis]
               for side in "it" for part in "qkv" for axis in "bsh"}  # fmt: skip
    with checking.checked() as check:
        merged = make_wide_rows(token, BANK, torch.float32, check.device)
        merged[token, : 3 * size] = float(value)
        turns = [make_wide_rows(token, size // 2, torch.float32, check.device) for _ in range(2)]
        turns[0][token], turns[1][token] = 1.0, 0.0  # no rotation
        out = checking.virtual_zeros((3, token + 1, size), torch.float32, check.device)
        launch_kernel(
            check, "_hunyuan_qkv_rope_pack_kernel", (token + 1, 1), [(token, 0)],
            img_q_ptr=merged, img_k_ptr=merged[:, size:], img_v_ptr=merged[:, 2 * size :],
            txt_q_ptr=merged, txt_k_ptr=merged, txt_v_ptr=merged, cos_ptr=turns[0],
            sin_ptr=turns[1], output_ptr=out, img_tokens=token + 1, txt_tokens=0, num_heads=1,
            head_dim=size, stride_cos=size // 2, stride_sin=size // 2, BLOCK_HEADS=1,
            BLOCK_HALF=size // 2, **strides,
        )  # fmt: skip
        assert out[:, token].unique().tolist() == [float(value)]
