"""The command that a rehearsal prints of a finding: as it stands, it shows the finding."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import IS_READY, REASON, RELEASE, rehearse_layers, run_command

ADAPTERS = "--enable-lora --max-lora-rank 64 --lora-target-modules all --max-loras-per-batch 8"
ARGUMENTS = [*ADAPTERS.split(), "--chunked-prefill-size", "-1"]
# One layer leaves room for many more slots than the whole model has.
WIDE_DECODE = ["--kv-cache-dtype", "fp8_e5m2", "--max-total-tokens", "6754259"]
TOGGLE = "28788-grouped-stage1"
VARIABLE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 "

pytestmark = [
    pytest.mark.skipif(not IS_READY, reason=REASON),
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
]


def run_printed(home: Path, command: str) -> dict[str, Any]:
    """Run a printed command, whose findings' thresholds are not searched again."""
    return run_command(home, command.replace("rehearse ", "rehearse --no-thresholds ", 1))


def find_finding(deployment: dict[str, Any], kernel: str) -> dict[str, Any]:
    """Find the first finding of a kernel."""
    found = [
        finding for finding in deployment["findings"] if finding["kernel"].endswith(f":{kernel}")
    ]
    return found[0] if found else {"rank": "none"}


def test_a_near_line_is_reached_by_its_command_and_a_reachable_one_begins_there(
    home: Path,
) -> None:
    deployment = rehearse_layers(home, "llama-3.1-8b", 1, [], ARGUMENTS)
    near = find_finding(deployment, "_chunked_lora_shrink_kernel")
    assert near["rank"] == "near"
    assert near["threshold"].startswith(VARIABLE)  # the model has 131,072 tokens of context
    assert find_finding(run_printed(home, near["threshold"]), "_chunked_lora_shrink_kernel")[
        "rank"
    ] == ("reachable")
    expand = find_finding(deployment, "_chunked_lora_expand_kernel")
    assert (expand["rank"], expand["threshold"].startswith("./unfix")) == ("reachable", True)
    command, _, size = expand["threshold"].rpartition(" ")
    reached = [
        [finding["text"] for finding in run_printed(home, f"{command} {context}")["findings"]]
        for context in (int(size) - 1, int(size))
    ]
    assert [expand["text"] in texts for texts in reached] == [False, True]


def test_a_finding_of_a_fix_taken_out_is_shown_by_its_command_alone(home: Path) -> None:
    """The line is that of #28788, which the release has, and begins at 1,025 requests."""
    deployment = rehearse_layers(home, "deepseek-v2-lite", 1, ["--revert", TOGGLE], WIDE_DECODE)
    found = find_finding(deployment, "_fwd_grouped_kernel_stage1")
    assert found["rank"] == "reachable"
    assert f"--release {RELEASE} --revert {TOGGLE} -- " in found["threshold"]
    shown = find_finding(run_printed(home, found["threshold"]), "_fwd_grouped_kernel_stage1")
    assert (shown["rank"], shown["text"]) == ("reachable", found["text"])
    without = found["threshold"].replace(f" --revert {TOGGLE}", "")
    assert find_finding(run_printed(home, without), "_fwd_grouped_kernel_stage1")["rank"] == "none"


def test_toggles_of_the_environment_are_part_of_the_command(home: Path) -> None:
    environment = {"SGLANG_DEBUG_REVERT_PR": TOGGLE, "SGLANG_JIT_CACHE_DIR": str(home / "jit")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        deployment = rehearse_layers(home, "deepseek-v2-lite", 1, [], WIDE_DECODE)
    found = find_finding(deployment, "_fwd_grouped_kernel_stage1")
    assert found["rank"] == "reachable"
    assert found["threshold"].startswith(f"SGLANG_DEBUG_REVERT_PR={TOGGLE} ./unfix rehearse ")
    shown = find_finding(run_printed(home, found["threshold"]), "_fwd_grouped_kernel_stage1")
    assert (shown["rank"], shown["text"]) == ("reachable", found["text"])
