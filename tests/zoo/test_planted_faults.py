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


def run_zoo(home: Path, arguments: list[str], faults: list[str]) -> dict[str, Any]:
    """Run the zoo with these faults."""
    (home / ".releases").symlink_to(paths.releases_folder())
    words = [*arguments, "--release", RELEASE, "--toggles", str(TOGGLES), "--json", "-j", "2"]
    words += [word for fault in faults for word in ("--revert", fault)]
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
    return run


def list_failures(
    home: Path, names: list[str], faults: list[str], check: str = ""
) -> dict[str, list[str]]:
    """Return the failing claims of each architecture under these faults."""
    run = run_zoo(home, [*names, *(["--check", check] if check else [])], faults)
    return {
        architecture["name"]: [
            claim["claim"] for claim in architecture["claims"] if claim["verdict"] == "fails"
        ]
        for architecture in run["architectures"]
    }


COMPARISON = "equals transformers"
of_the_night = pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")


@pytest.mark.parametrize(
    ("faults", "exact", "others"),
    [
        pytest.param(
            ["zoo-head-scale", "zoo-expert-off-by-one", "zoo-rope-of-another-layer"],
            *(["qwen3", "mixtral", "laguna"], []),
            id="heads, experts and ropes",
        ),
        pytest.param(
            ["zoo-scale-of-another-block", "zoo-zero-point-forgotten", "zoo-adapter-scaling"],
            *(["qwen3_moe_awq", "qwen3_moe_gptq", "llama_lora"], ["qwen3_fp8_blocks"]),
            id="quantized weights and adapters",
            marks=of_the_night,
        ),
        pytest.param(
            ["zoo-scale-of-another-int8-block", "zoo-scale-of-another-expert"],
            *([], ["qwen3_int8_blocks", "qwen3_moe_fp8_blocks"]),
            id="scales of other experts and other int8 blocks",
            marks=of_the_night,
        ),
        pytest.param(
            *(["zoo-window-one-short"], [], ["laguna"]), id="a window", marks=of_the_night
        ),
        pytest.param(
            [
                *("zoo-experts-renormalized", "zoo-experts-not-scaled", "zoo-multiplier-forgotten"),
                *("zoo-step-without-bias", "zoo-sinks-forgotten", "zoo-cap-halved"),
            ],
            *([], ["olmoe", "glm4_moe", "granite", "qwen3_next", "gpt_oss_wide", "gemma2_full"]),
            id="numbers of a configuration",
            marks=of_the_night,
        ),
    ],
)
def test_faults_are_seen_by_the_comparison_in_their_architectures_alone(
    tmp_path: Path, faults: list[str], exact: list[str], others: list[str]
) -> None:
    """In `exact` ones no other claim fails; in `others` other weights may fail more."""
    failures = list_failures(tmp_path, [*exact, *others, "llama"], faults)
    assert failures.pop("llama") == []  # no fault is in it
    assert set(failures) == {*exact, *others}
    assert [failures[name] for name in exact] == [[COMPARISON]] * len(exact)
    assert all(COMPARISON in failures[name] for name in others), failures


@of_the_night
@pytest.mark.parametrize(
    ("architecture", "fault", "check", "claims"),
    [
        ("llama", "zoo-stale-graph-address", "", ["graph"]),
        ("olmo2", "zoo-use-before-its-event", "streams", ["memory checks"]),
        ("llama", "zoo-last-cached-key-lost", "", ["chunks", "cached prefix"]),
    ],
)
def test_a_fault_that_the_comparison_misses_is_seen_by_another_claim(
    tmp_path: Path, architecture: str, fault: str, check: str, claims: list[str]
) -> None:
    assert list_failures(tmp_path, [architecture], [fault], check) == {architecture: claims}


@of_the_night
def test_a_fault_in_a_feature_is_named_by_its_column_alone(tmp_path: Path) -> None:
    faults = {
        "zoo-page-slot-twice": "page 16",
        "zoo-mixed-token-of-another-request": "mixed chunk",
        "zoo-draft-target-of-another": "draft topk 1",
        "zoo-flex-sees-the-next-token": "flex_attention",
        "zoo-sum-of-another-size": "deterministic",
        "zoo-cache-kept-over-an-update": "radix cache + updated from disk",
    }
    features = [*faults.values(), "overlap", "chunk 16", "radix cache", "updated from disk"]
    run = run_zoo(tmp_path, ["llama", "--features", ", ".join(features)], list(faults))
    [row] = run["architectures"]
    found = {" + ".join(one["features"]): one["verdict"] for one in row["features"]}
    wrong = dict.fromkeys(faults.values(), "differs")
    assert found == dict.fromkeys(["plain server", *features], "equal") | wrong
