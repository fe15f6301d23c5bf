"""Rows of large tensors in SGLang's CUDA kernels, past what 32 bits can count.

THE INVARIANTS IN PLAIN WORDS
- A row is read and written where it lies, however many elements lie before it.

The tensors are as large as they look, and take no memory where nothing is written. No toggle covers
these kernels: 0.5.23 is the newest release, and with far rows each test is expected to fail there.
The pages in docs/findings name the line of each.
"""

from __future__ import annotations

import pytest
import torch

from fixtures import cuda_kernels
from harness import checking
from harness.sanitizer.plugins.for_sglang.formulas import normalize_rows

BOUNDARY = 1 << 31  # elements; twice as many in kernels that count without a sign

upstream_bug = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="0.5.23 finds these rows in 32 bits (docs/findings)"
)


pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=(
        "attention.dsa.fused_metadata_copy",
        "attention.fixup_zero_kv",
        "attention.fused_qknorm_rope",
        "mamba.causal_conv1d",
        "mamba.inkling_sconv",
        "speculative.tree",
    ),
)


def near_and_far(elements: int = BOUNDARY) -> pytest.MarkDecorator:
    """Run a test with rows next to each other, and with so many elements between them."""
    return pytest.mark.parametrize(
        "distance",
        [pytest.param(0, id="near"), pytest.param(elements, id="far", marks=upstream_bug)],
    )


@near_and_far()
def test_a_normed_head_is_found_behind_wide_tokens(distance: int) -> None:
    run = cuda_kernels.require_kernel("attention.fused_qknorm_rope", "fused_qk_norm_rope")
    head = 64
    values = 1 + distance // (2 * head)  # heads of values, which the kernel leaves alone
    with checking.checked_cuda() as check:
        device = check.device
        fused = checking.virtual_zeros((3, (2 + values) * head), torch.bfloat16, device)
        rows = cuda_kernels.draw_normal(1, 3, 2 * head, device=device)
        fused[:, : 2 * head] = rows
        weight = torch.ones(head, dtype=torch.bfloat16, device=device)
        places = torch.zeros(3, dtype=torch.int32, device=device)  # position 0 turns nothing
        run(fused, 1, 1, values, head, 1e-6, weight, weight, 1e4, True, places, 1.0, 1.0, 1.0, 1.0)
        exact = normalize_rows(rows.view(3, 2, head))
        found = fused[:, : 2 * head].float().view(3, 2, head)
        torch.testing.assert_close(found, exact, rtol=0.01, atol=0.01)


@near_and_far()
def test_a_convolution_finds_tokens_of_wide_rows(distance: int) -> None:
    convolve = cuda_kernels.require_kernel("mamba.inkling_sconv", "causal_conv1d")
    width, taps = 8, 4
    with checking.checked_cuda() as check:
        device = check.device
        wide = checking.virtual_zeros((3, width + distance // 2), torch.bfloat16, device)
        tokens = wide[:, :width]
        tokens.copy_(cuda_kernels.draw_normal(1, 3, width, device=device))
        weight = torch.zeros(width, taps, dtype=torch.bfloat16, device=device)
        weight[:, -1] = 1  # a token's own tap: the result is the input
        found = convolve(
            tokens,
            weight,
            torch.zeros(2, taps - 1, width, dtype=torch.bfloat16, device=device),
            torch.ones(1, 1, 1, dtype=torch.bool, device=device),
            torch.tensor([1], device=device),
            torch.tensor([0, 3], device=device),
            torch.zeros(3, dtype=torch.int32, device=device),
            use_residual=False,
        )
        assert found.equal(tokens)


@near_and_far()
def test_an_output_without_keys_is_cleared_where_it_lies(distance: int) -> None:
    clear = cuda_kernels.require_kernel("attention.fixup_zero_kv", "fixup_zero_kv_rows")
    heads, head = 128, 128
    first = distance // (heads * head)
    with checking.checked_cuda() as check:
        device = check.device
        out = checking.virtual_zeros((first + 1, heads, head), torch.bfloat16, device)
        sums = checking.virtual_zeros((first + 1, heads), torch.float32, device)
        out[first], sums[first] = 1, 1
        clear(
            out,
            sums,
            torch.tensor([1, 0], dtype=torch.int32, device=device),
            torch.tensor([0, first, first + 1], dtype=torch.int32, device=device),
            1,
        )
        assert not out[first].any()
        assert sums[first].isneginf().all()


@near_and_far()
def test_a_drafts_mask_is_written_behind_long_contexts(distance: int) -> None:
    build = cuda_kernels.require_kernel("speculative.tree", "build_tree_kernel_efficient")
    size = 2  # the root and one draft
    lengths = [distance // size, 1]
    with checking.checked_cuda() as check:
        device = check.device
        mask = checking.virtual_zeros(
            (sum(length * size for length in lengths) + 2 * size * size,), torch.bool, device
        )
        positions = torch.empty(2 * size, dtype=torch.int64, device=device)
        links = [torch.full((2, size), -1, device=device) for _ in range(3)]
        build(
            torch.tensor([[-1], [-1]], device=device),
            torch.zeros(2, 1, dtype=torch.int64, device=device),
            torch.tensor(lengths, device=device),
            mask,
            positions,
            *links,
            1,
            1,
            size,
            0,
        )
        own = mask[-(lengths[1] + size) * size :].view(size, -1)[:, lengths[1] :]
        assert own.tolist() == [[True, False], [True, True]]


@near_and_far()
def test_page_tables_are_copied_to_long_rows(distance: int) -> None:
    copy = cuda_kernels.require_kernel(
        "attention.dsa.fused_metadata_copy", "fused_metadata_copy_cuda"
    )
    requests, longest = 3, 2
    with checking.checked_cuda() as check:
        device = check.device
        pages = torch.arange(requests * longest, dtype=torch.int32, device=device)
        pages = pages.view(requests, longest)
        table = checking.virtual_zeros((requests, longest + distance // 2), torch.int32, device)
        lengths = torch.full((requests,), longest, dtype=torch.int32, device=device)
        sums = torch.arange(requests + 1, dtype=torch.int32, device=device) * longest
        copy(
            *(lengths, sums, pages, lengths, None, sums, None, None, None),
            *(lengths.clone(), sums.clone(), table, lengths.clone(), None, sums.clone()),
            *(None, None, None),
            *(0, requests, longest, longest, requests),
        )
        assert table[:, :longest].equal(pages)


@near_and_far(2 * BOUNDARY)
def test_a_step_updates_the_state_of_a_far_slot(distance: int) -> None:
    step = cuda_kernels.require_kernel("mamba.causal_conv1d", "causal_conv1d_update")
    channels, width = 8, 4
    with checking.checked_cuda() as check:
        device = check.device
        # The states of other layers lie behind a slot's own.
        state_size = channels * (width - 1)
        pool = checking.virtual_zeros((3, state_size + distance // 2), torch.bfloat16, device)
        states = pool[:, :state_size].view(3, channels, width - 1)
        token = cuda_kernels.draw_normal(1, 1, channels, device=device).view(1, channels, 1)
        wanted = token.clone()
        weight = torch.zeros(channels, width, dtype=torch.bfloat16, device=device)
        weight[:, -1] = 1
        slots = torch.tensor([2], dtype=torch.int32, device=device)
        step(token, states, weight, None, False, None, slots, -1)
        assert token.equal(wanted)
        assert states[2, :, -1].equal(wanted[0, :, 0])
        assert not states[0].any()
