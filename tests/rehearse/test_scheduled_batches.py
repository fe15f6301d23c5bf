"""What SGLang's scheduler makes at full size: prefill with decode, and rounds of speculation.

The model has three layers, whose states EAGLE takes, and launches what each layer launches.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from rehearsed_models import IS_READY, REASON, ModelToRehearse

SPECULATION = (
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "llama-3.1-8b-eagle3"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "16", "--context-length", "2048"),
)

pytestmark = pytest.mark.skipif(not IS_READY, reason=REASON)


MIXED_CHUNK = ("--enable-mixed-chunk", "--max-running-requests", "32")


def list_kernels(deployment: dict[str, Any], phase: str) -> dict[str, list[int]]:
    """Return the grid of each kernel that a phase launched."""
    return {
        launch["kernel"].rpartition(":")[2]: launch["grid"]
        for launch in deployment["launches"]
        if launch["phase"] == phase
    }


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
@pytest.mark.parametrize(
    "deployments", [[ModelToRehearse("llama-3.1-8b", 3, MIXED_CHUNK)]], indirect=True
)
def test_a_chunk_is_extended_together_with_requests_that_decode(
    deployments: list[dict[str, Any]],
) -> None:
    [deployment] = deployments
    assert not any(phase["failure"] for phase in deployment["phases"])
    kernels = list_kernels(deployment, "mixed")
    assert kernels["compute_position_kernel"] == [32, 1, 1]  # 31 that decode, and the chunk
    assert kernels["_fwd_kernel"][0] == 32
    assert "_fwd_grouped_kernel_stage1" not in kernels  # no decode of its own


@pytest.mark.parametrize(
    "deployments", [[ModelToRehearse("llama-3.1-8b", 3, SPECULATION)]], indirect=True
)
def test_a_round_drafts_verifies_and_extends_at_the_most_requests(
    deployments: list[dict[str, Any]],
) -> None:
    [deployment] = deployments
    assert not any(phase["failure"] for phase in deployment["phases"])
    count = deployment["settings"]["requests"]
    draft = list_kernels(deployment, "speculation: draft")
    assert draft["generate_draft_decode_kv_indices"] == [3, count, 4]  # steps, requests, topk
    assert draft["_fwd_grouped_kernel_stage1"][0] == 4 * count
    verify = list_kernels(deployment, "speculation: verify")
    assert verify["assign_extend_cache_locs_uniform"] == [count, 1, 1]
    assert verify["_fwd_kernel"][0] == count
    extend = list_kernels(deployment, "speculation: draft extend")
    assert extend["compute_position_kernel"] == [count, 1, 1]
    # The slots that a round reserves for a request near its context's end do not fit in its row.
    [finding] = [one for one in deployment["findings"] if one["kind"] == "OutOfBounds"]
    assert "past the end of req_to_token" in finding["headline"]
    assert finding["kernel"].endswith(":assign_req_to_token_pool")
