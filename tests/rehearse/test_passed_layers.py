"""A rehearsal in which layers pass their input on says what one says that runs them all."""

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
from harness.runs.rehearse.deployment import read_model

RELEASE = "0.5.23"
LAYERS = 7
KEPT_BYTES = 1 << 16  # that a peak may be lower by; seen: 5,120 of Qwen3-235B with --ep 8
LAYERS_OF_KINDS = 16  # so that each kind has more than a first and a last one

pytestmark = pytest.mark.skipif(
    not managed_releases.get_release(RELEASE).is_ready,
    reason=f"needs the environment of {RELEASE}: ./unfix test makes it",
)


def rehearse_layers(
    home: Path, model: str, layers: int, arguments: list[str], *words: str
) -> dict[str, Any]:
    """Rehearse the first layers of a model."""
    config = {**read_model(model).config, "num_hidden_layers": layers}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    file = home / "layers.json"
    file.write_text(json.dumps(config))
    if not (home / ".releases").exists():
        (home / ".releases").symlink_to(paths.releases_folder())
    options = ["--config", str(file), "--release", RELEASE, "--json", "--no-thresholds", *words]
    finished = subprocess.run(
        [sys.executable, "-m", "harness", "rehearse", *options, "--", *arguments],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode in (0, 1), finished.stderr
    deployment: dict[str, Any]
    [deployment] = json.loads(finished.stdout)["deployments"]
    assert not deployment["refusal"], deployment["detail"]
    return deployment


def count_passed(deployment: dict[str, Any]) -> int:
    return sum(phase.get("passed_layers", 0) for phase in deployment["phases"])


def describe(deployment: dict[str, Any]) -> dict[str, Any]:
    """Return what a rehearsal says, but for its time, all memory, and which layers ran."""
    ignored = ("seconds", "layers", "passed_layers", "peak")
    return {
        name: [{key: one[key] for key in one if key not in ignored} for one in value]
        if name == "phases"
        else value
        for name, value in deployment.items()
        if name not in ("seconds", "processor_seconds", "resident", "functions")
    }


def check_both_ways(home: Path, model: str, layers: int, arguments: list[str]) -> None:
    passed = rehearse_layers(home, model, layers, arguments)
    whole = rehearse_layers(home, model, layers, arguments, "--all-layers")
    assert count_passed(passed) > count_passed(whole) == 0
    assert describe(passed) == describe(whole)
    for one, other in zip(passed["phases"], whole["phases"], strict=True):
        assert 0 <= other["peak"] - one["peak"] <= KEPT_BYTES, one["name"]


def test_all_layers_launch_what_is_counted_for_those_that_pass(tmp_path: Path) -> None:
    """The first layer of DeepSeek-V2-Lite is dense, the others have experts."""
    check_both_ways(tmp_path, "deepseek-v2-lite", LAYERS, ["--max-total-tokens", "400000"])


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("gpt-oss-120b", ["--tp", "4"]),
        ("qwen3-next-80b-a3b", ["--tp", "4"]),
        ("qwen3-235b-a22b", ["--tp", "8", "--ep", "8"]),
        ("deepseek-v3", ["--tp", "8", "--dp", "4", "--enable-dp-attention"]),
    ],
)
def test_models_of_several_kinds_of_layers_launch_what_is_counted(
    tmp_path: Path, model: str, arguments: list[str]
) -> None:
    check_both_ways(tmp_path, model, LAYERS_OF_KINDS, arguments)
