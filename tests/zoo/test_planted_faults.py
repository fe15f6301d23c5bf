"""A planted fault makes its column red, and only in its own architecture.

The first run is of every test run; the others need `UNFIX_NIGHTLY=1`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core import paths
from harness.releases import managed_releases

RELEASE = "0.5.23"
TOGGLES = Path(__file__).parent / "toggles"

pytestmark = pytest.mark.skipif(
    not managed_releases.get_release(RELEASE).is_ready,
    reason=f"needs the environment of {RELEASE}: ./unfix test makes it",
)


def list_failures(
    home: Path, names: list[str], faults: list[str], check: str = ""
) -> dict[str, list[str]]:
    """Run the zoo with these faults; return the failing claims of each architecture."""
    (home / ".releases").symlink_to(paths.releases_folder())
    words = [*names, "--release", RELEASE, "--toggles", str(TOGGLES), "--json", "-j", "2"]
    words += [word for fault in faults for word in ("--revert", fault)]
    words += ["--check", check] if check else []
    finished = subprocess.run(
        [sys.executable, "-m", "harness", "zoo", *words],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode == 1, finished.stderr
    run: dict[str, Any] = json.loads(finished.stdout)
    assert run["toggles"] == [f"-{fault}" for fault in faults]
    return {
        architecture["name"]: [
            claim["claim"] for claim in architecture["claims"] if claim["verdict"] == "fails"
        ]
        for architecture in run["architectures"]
    }


def test_faults_in_heads_experts_and_ropes_are_seen_by_the_comparison(tmp_path: Path) -> None:
    faults = ["zoo-head-scale", "zoo-expert-off-by-one", "zoo-rope-of-another-layer"]
    found = list_failures(tmp_path, ["llama", "qwen3", "mixtral", "laguna"], faults)
    assert found.pop("llama") == []  # no fault is in it
    assert set(found) == {"qwen3", "mixtral", "laguna"}
    assert all(claims == ["equals transformers"] for claims in found.values()), found


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_faults_in_quantized_weights_and_adapters_are_seen_by_the_comparison(
    tmp_path: Path,
) -> None:
    faults = ["zoo-scale-of-another-block", "zoo-zero-point-forgotten", "zoo-adapter-scaling"]
    names = ["qwen3_fp8_blocks", "qwen3_moe_awq", "qwen3_moe_gptq", "llama_lora", "llama"]
    found = list_failures(tmp_path, names, faults)
    assert found.pop("llama") == []  # no fault is in it
    assert set(found) == set(names) - {"llama"}
    assert "equals transformers" in found["qwen3_fp8_blocks"]  # other weights may fail more
    del found["qwen3_fp8_blocks"]
    assert all(claims == ["equals transformers"] for claims in found.values()), found


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_scales_of_other_experts_and_of_other_int8_blocks_are_seen_by_the_comparison(
    tmp_path: Path,
) -> None:
    faults = ["zoo-scale-of-another-int8-block", "zoo-scale-of-another-expert"]
    found = list_failures(tmp_path, ["qwen3_int8_blocks", "qwen3_moe_fp8_blocks"], faults)
    assert set(found) == {"qwen3_int8_blocks", "qwen3_moe_fp8_blocks"}
    assert all("equals transformers" in claims for claims in found.values()), found


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_a_window_one_short_is_seen_by_the_comparison(tmp_path: Path) -> None:
    found = list_failures(tmp_path, ["laguna"], ["zoo-window-one-short"])
    assert "equals transformers" in found["laguna"]


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_an_address_that_a_graph_has_no_longer_is_seen_by_its_replay(tmp_path: Path) -> None:
    assert list_failures(tmp_path, ["llama"], ["zoo-stale-graph-address"]) == {"llama": ["graph"]}


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_a_use_before_its_event_is_seen_by_the_check_of_streams(tmp_path: Path) -> None:
    found = list_failures(tmp_path, ["olmo2"], ["zoo-use-before-its-event"], check="streams")
    assert found == {"olmo2": ["memory checks"]}


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_numbers_of_a_configuration_that_are_forgotten_are_seen_by_the_comparison(
    tmp_path: Path,
) -> None:
    faults = ["zoo-experts-renormalized", "zoo-experts-not-scaled", "zoo-multiplier-forgotten"]
    faults += ["zoo-step-without-bias", "zoo-sinks-forgotten", "zoo-cap-halved"]
    names = ["olmoe", "glm4_moe", "granite", "qwen3_next", "gpt_oss_wide", "gemma2_full"]
    found = list_failures(tmp_path, [*names, "llama"], faults)
    assert found.pop("llama") == []  # no fault is in it
    assert set(found) == set(names)
    assert all("equals transformers" in claims for claims in found.values()), found


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_a_cached_key_that_is_lost_is_seen_by_chunks_and_prefixes(tmp_path: Path) -> None:
    found = list_failures(tmp_path, ["llama"], ["zoo-last-cached-key-lost"])
    assert found == {"llama": ["chunks", "cached prefix"]}
