"""What shows at the size of a deployment alone: rehearsed on the virtual GPU.

THE INVARIANT IN PLAIN WORDS

A real server's largest batches bring no 32-bit integer on the way into an address within four times
of 2^31. SGLang's own pools, batches and backends make the launches; nothing is guessed.
"""

from __future__ import annotations

import pytest

from fixtures.rehearse import guarded_deployment as adapter

pytestmark = pytest.mark.runs_on("virtual")


@pytest.fixture(autouse=True)
def _deployments_run_on_the_virtual_gpu() -> None:
    adapter.skip_without_virtual_gpu()


@pytest.mark.guards("28788-grouped-stage1")
def test_many_requests_of_latent_attention_find_their_partial_results() -> None:
    result = adapter.rehearse_layers(
        *("deepseek-v2-lite", 1, "decode", "--max-total-tokens", "4000000"),
        *("--max-running-requests", "2048"),
        *("--triton-attention-num-kv-splits", "256"),  # older releases choose fewer
    )
    adapter.assert_far_from_overflow(result, "_fwd_grouped_kernel_stage1")


@pytest.mark.guards("28788-stage1")
def test_many_requests_of_plain_attention_find_their_partial_results() -> None:
    result = adapter.rehearse_layers(
        *("qwen1.5-7b", 1, "decode", "--triton-attention-split-tile-size", "256"),
        *("--max-total-tokens", "4000000", "--max-running-requests", "4096"),
    )
    adapter.assert_far_from_overflow(result, "_fwd_kernel_stage1")


@pytest.mark.guards("33665")
def test_a_long_prompt_that_is_not_cut_finds_its_tokens_in_the_convolution() -> None:
    result = adapter.rehearse_layers(
        *("qwen3-next-80b-a3b", 4, "chunk", "--tp", "2", "--chunked-prefill-size", "-1"),
        *("--max-total-tokens", "600000"),
    )
    kernel = "_causal_conv1d_fwd_kernel"
    adapter.skip_where_operator_runs_instead(result, kernel, "sgl_kernel.causal_conv1d_fwd")
    adapter.assert_far_from_overflow(result, kernel)
