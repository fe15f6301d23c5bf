"""Inkling's convolution states in SGLang's CUDA kernels, in a pool of all layers.

THE INVARIANTS IN PLAIN WORDS
- A layer's cache may be a strided view of a pool; other layers' bytes are not touched.
- After an update a slot holds the last rows of its old state and the new tokens, one after another.
- A state is copied bit for bit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures import cuda_kernels
from harness import checking
from harness.guards.cells import enable_where_missing

ROWS, WIDTH, SLOTS = 3, 8, 6  # taps before the current token, channels, slots of the pool


pytestmark = pytest.mark.prepared(by=cuda_kernels.build_modules, names=("mamba.inkling_sconv",))


@pytest.mark.guards("sconv-update-strided-cache")
@given(
    lengths=cuda_kernels.sequence_lengths,
    seed=cuda_kernels.seeds,
    layers=st.integers(1, 3),
    has_state=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_an_update_shifts_each_state(
    seed: int, lengths: list[int], layers: int, has_state: list[bool]
) -> None:
    update = require_kernel("update_sconv_cache")
    with checking.checked_cuda() as check:
        device = check.device
        pool = cuda_kernels.StridedPool(SLOTS, ROWS, WIDTH, layers, device)
        before = pool.cache.clone()
        tokens = cuda_kernels.draw_normal(seed, sum(lengths), WIDTH, device=device)
        starts = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
        slots = torch.arange(1, len(lengths) + 1, dtype=torch.int32, device=device)
        states = torch.tensor(has_state[: len(lengths)], device=device)
        update(tokens, pool.cache, slots, states, starts)
        for request, length in enumerate(lengths):
            if length:
                slot, first = request + 1, sum(lengths[:request])
                old = before[slot] * has_state[request]
                pool.expected_layer[slot] = torch.cat([old, tokens[first : first + length]])[-ROWS:]
        assert pool.list_differences() == []


@pytest.mark.guards("sconv-gather-strided-cache")
@given(
    seed=cuda_kernels.seeds,
    layers=st.integers(1, 3),
    rows=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_gathered_rows_land_in_their_slots(
    seed: int, layers: int, rows: list[tuple[bool, int]]
) -> None:
    gather = require_kernel("fused_gather_scatter_to_sconv_cache")
    with checking.checked_cuda() as check:
        device = check.device
        pool = cuda_kernels.StridedPool(SLOTS, ROWS, WIDTH, layers, device)
        hidden = cuda_kernels.draw_normal(seed, 8, WIDTH, device=device)
        track = torch.tensor([[first, first + 1, first + 2] for _, first in rows], device=device)
        mask = torch.tensor([chosen for chosen, _ in rows], device=device)
        slots = torch.arange(len(rows), device=device)
        gather(hidden, pool.cache, track.to(torch.int32), mask, slots)
        for slot, (chosen, first) in enumerate(rows):
            if chosen:
                pool.expected_layer[slot] = hidden[first : first + ROWS]
        assert pool.list_differences() == []


@pytest.mark.guards("sconv-conv-strided-cache")
@given(seed=cuda_kernels.seeds, lengths=cuda_kernels.sequence_lengths, layers=st.integers(1, 3))
def test_a_convolution_reads_its_own_prefix(seed: int, lengths: list[int], layers: int) -> None:
    convolve = require_kernel("causal_conv1d")
    with checking.checked_cuda() as check:
        device = check.device
        pool = cuda_kernels.StridedPool(SLOTS, ROWS, WIDTH, layers, device)
        tokens = cuda_kernels.draw_normal(seed, sum(lengths), WIDTH, device=device)
        weight = cuda_kernels.draw_normal(seed + 1, WIDTH, ROWS + 1, device=device)
        count = len(lengths)
        slots = torch.arange(1, count + 1, device=device)
        mask = torch.ones(count, 1, 1, dtype=torch.bool, device=device)
        starts = torch.tensor([0, *lengths], device=device).cumsum(0)
        owners = torch.repeat_interleave(
            torch.arange(count, device=device), torch.tensor(lengths, device=device)
        ).to(torch.int32)
        found = convolve(
            tokens, weight, pool.cache, mask, slots, starts, owners, use_residual=False
        )
        parts = []
        for request, length in enumerate(lengths):
            first = sum(lengths[:request])
            row = torch.cat([pool.cache[request + 1], tokens[first : first + length]]).double()
            windows = row.unfold(0, ROWS + 1, 1) if length else row.new_zeros(0, WIDTH, ROWS + 1)
            parts.append((windows * weight.double()).sum(-1))
        torch.testing.assert_close(found.double(), torch.cat(parts), atol=0.05, rtol=0.02)
        assert pool.list_differences() == []


@pytest.mark.guards("sconv-draft-strided-cache")
@given(
    seed=cuda_kernels.seeds,
    layers=st.integers(1, 3),
    accepted=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    tracked=st.none() | st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=4),
)
def test_a_draft_keeps_its_accepted_tokens(
    seed: int, layers: int, accepted: list[int], tracked: list[tuple[bool, int]] | None
) -> None:
    extend = require_kernel("fused_draft_extend_sconv_cache")
    drafted, count = 4, len(accepted)
    with checking.checked_cuda() as check:
        device = check.device
        pool = cuda_kernels.StridedPool(2 * SLOTS, ROWS, WIDTH, layers, device)
        hidden = cuda_kernels.draw_normal(seed, count * drafted, WIDTH, device=device)
        slots = torch.arange(1, count + 1, dtype=torch.int32, device=device)
        counts = torch.tensor(accepted, dtype=torch.int32, device=device)
        copies = [False] * count
        tracking: list[Any] = []
        if tracked:
            copies = [chosen for chosen, _ in tracked[:count]]
            steps = [step for _, step in tracked[:count]]
            tracking = [
                True,
                torch.tensor(copies, device=device),
                torch.tensor(steps, dtype=torch.int32, device=device),
                torch.arange(count, device=device) + SLOTS,
            ]
        extend(hidden, pool.cache, slots, counts, drafted, *tracking)
        for request, length in enumerate(accepted):
            own = hidden[request * drafted : (request + 1) * drafted]
            row = torch.cat([pool.expected_layer[request + 1], own])
            pool.expected_layer[request + 1] = row[length : length + ROWS]
            if tracked and copies[request]:
                first = tracked[request][1]
                pool.expected_layer[request + SLOTS] = row[first : first + ROWS]
        assert pool.list_differences() == []


@pytest.mark.parametrize("distance", [0, 1 << 30], ids=["near", "far"])
def test_states_are_updated_however_far_apart_their_rows_lie(distance: int) -> None:
    extend = require_kernel("fused_draft_extend_sconv_cache")
    step = require_kernel("fused_causal_conv1d_update_decode")
    with (
        enable_where_missing("sconv-draft-strided-cache", "sconv-decode-strided-cache"),
        checking.checked_cuda() as check,
    ):
        device = check.device
        wide = checking.virtual_zeros((2, ROWS, WIDTH + distance), torch.bfloat16, device)
        states = wide[:, :, :WIDTH]
        states.copy_(cuda_kernels.draw_normal(1, 2 * ROWS, WIDTH, device=device).view(2, ROWS, -1))
        tokens = cuda_kernels.draw_normal(2, 2, WIDTH, device=device)
        weight = torch.ones(WIDTH, ROWS + 1, dtype=torch.bfloat16, device=device)
        first, second = (torch.tensor([n], dtype=torch.int32, device=device) for n in range(2))
        yes = torch.tensor([True], device=device)
        row = torch.cat([states[1], tokens])
        extend(tokens, states, second, second, 2)  # one token is accepted
        assert states[1].equal(row[1 : 1 + ROWS])
        row = torch.cat([states[0], tokens])
        extend(tokens, states, first, second, 2, True, yes, first, second.long())
        assert states[0].equal(row[1 : 1 + ROWS])
        assert states[1].equal(row[:ROWS])
        row = torch.cat([states[0], tokens[:1]])
        tracking = {"track_mask": yes, "track_indices": second.long()}
        step(tokens[:1], weight, states, first, yes, use_residual=False, **tracking)
        assert states[0].equal(row[1:])
        assert states[1].equal(row[1:])
        row = torch.cat([states[1], tokens[1:]])
        step(tokens[1:], weight, states, second, yes, use_residual=False)
        assert states[1].equal(row[1:])


@pytest.mark.guards("sconv-decode-strided-cache")
@given(
    seed=cuda_kernels.seeds,
    layers=st.integers(1, 3),
    lanes=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4),
    tracked=st.none() | st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_a_decode_step_shifts_each_state(
    seed: int, layers: int, lanes: list[tuple[bool, bool]], tracked: list[bool] | None
) -> None:
    step = require_kernel("fused_causal_conv1d_update_decode")
    with checking.checked_cuda() as check:
        device, count = check.device, len(lanes)
        pool = cuda_kernels.StridedPool(2 * SLOTS, ROWS, WIDTH, layers, device)
        before = pool.cache.clone()
        tokens = cuda_kernels.draw_normal(seed, len(lanes), WIDTH, device=device)
        weight = cuda_kernels.draw_normal(seed + 1, WIDTH, ROWS + 1, device=device)
        slots = [place + 1 if is_valid else -1 for place, (is_valid, _) in enumerate(lanes)]
        states = torch.tensor([has_state for _, has_state in lanes], device=device)
        tracking: dict[str, Any] = {}
        if tracked:
            tracking["track_mask"] = torch.tensor(tracked[:count], device=device)
            tracking["track_indices"] = torch.arange(count, device=device) + SLOTS
        found = step(
            tokens,
            weight,
            pool.cache,
            torch.tensor(slots, dtype=torch.int32, device=device),
            states,
            use_residual=False,
            **tracking,
        )
        for lane, (is_valid, has_state) in enumerate(lanes):
            if is_valid:
                row = torch.cat([before[lane + 1] * has_state, tokens[lane : lane + 1]])
                exact = (row.double() * weight.double().T).sum(0)
                torch.testing.assert_close(found[lane].double(), exact, atol=0.05, rtol=0.02)
                pool.expected_layer[lane + 1] = row[1:]
                if tracked and tracked[lane]:
                    pool.expected_layer[lane + SLOTS] = row[1:]
        assert pool.list_differences() == []


def require_kernel(name: str) -> Any:
    return cuda_kernels.fail_on_refusal(cuda_kernels.require_kernel("mamba.inkling_sconv", name))
