"""A fix whose bug shows at a deployment's size alone: named when it is out, silent when it is in.

Pull request 28788 widened the offsets of decode attention's partial results. The model of every
test run is DeepSeek-V2-Lite with one layer; `UNFIX_NIGHTLY=1` rehearses all of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import (
    IS_READY,
    MISPLACED_SIBLINGS,
    REASON,
    WIDE_DECODE,
    ModelToRehearse,
    rehearse_model,
)

# One layer leaves room for many more slots than the whole model has.
ARGUMENTS = ("--kv-cache-dtype", "fp8_e5m2", "--max-total-tokens", "6754259")
REVERTED = ModelToRehearse(
    "deepseek-v2-lite", 1, ARGUMENTS, thresholds=True, toggles=MISPLACED_SIBLINGS
)
APPLIED = ModelToRehearse("deepseek-v2-lite", 1, ARGUMENTS, thresholds=True)

pytestmark = pytest.mark.skipif(not IS_READY, reason=REASON)


def list_overflows(deployment: dict[str, Any]) -> dict[str, str]:
    """Return the headline of each overflow by its kernel."""
    return {
        finding["kernel"].rpartition(":")[2]: finding["headline"]
        for finding in deployment["findings"]
        if finding["kind"] == "IntegerOverflow" and finding["rank"] == "reachable"
    }


def check_reverted(deployment: dict[str, Any]) -> None:
    assert not any(phase["failure"] for phase in deployment["phases"])
    overflows = list_overflows(deployment)
    assert set(overflows) == {"_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"}
    for headline in overflows.values():
        assert "4095 * 2097152 became -2097152" in headline
    extents = {launch["kernel"].rpartition(":")[2]: launch for launch in deployment["launches"]}
    assert extents["_fwd_kernel_stage2"]["programs"] > 0


@pytest.mark.parametrize("deployments", [[REVERTED]], indirect=True)
def test_one_layer_names_both_lines_of_a_reverted_fix(deployments: list[dict[str, Any]]) -> None:
    [deployment] = deployments
    check_reverted(deployment)
    # 1023 * 2097152 is less than 2^31, and 1024 * 2097152 is not: from 1,025 requests on.
    begins = [finding["threshold"] for finding in deployment["findings"] if finding["threshold"]]
    assert len(begins) == 2
    assert all(command.endswith("--max-running-requests 1025") for command in begins)


@pytest.mark.parametrize("deployments", [[APPLIED]], indirect=True)
def test_one_layer_says_nothing_with_the_fix_applied(deployments: list[dict[str, Any]]) -> None:
    [deployment] = deployments
    assert [phase["failure"] for phase in deployment["phases"]] == [""] * 4
    assert list_overflows(deployment) == {}
    kernels = {launch["kernel"].rpartition(":")[2] for launch in deployment["launches"]}
    assert {"_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"} <= kernels


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_the_whole_model_names_both_lines_of_a_reverted_fix(home: Path) -> None:
    words = ["--revert", ",".join(WIDE_DECODE)]
    check_reverted(rehearse_model(home, "deepseek-v2-lite", None, words, ARGUMENTS))
