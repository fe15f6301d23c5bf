"""A release that lacks what a batch is made with: the rehearsal stops with the name of it.

0.5.9 has all that plain batches need. Its CUDA graphs and its scheduler are other ones.
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
from harness.runs.rehearse.deployment import read_model

RELEASE = "0.5.9"
SPECULATION = [
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "llama-3.1-8b-eagle3"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "16", "--context-length", "2048"),
]

pytestmark = pytest.mark.skipif(
    not managed_releases.get_release(RELEASE).is_ready,
    reason=f"needs the environment of {RELEASE}: ./unfix test makes it",
)


def rehearse_two_layers(home: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Rehearse two layers of Llama; return the exit code and the deployment."""
    file = home / "two-layers.json"
    file.write_text(json.dumps({**read_model("llama-3.1-8b").config, "num_hidden_layers": 2}))
    command = ["--config", str(file), "--release", RELEASE, "--json", "--no-thresholds"]
    finished = subprocess.run(
        [sys.executable, "-m", "harness", "rehearse", *command, "--", *arguments],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    deployment: dict[str, Any]
    [deployment] = json.loads(finished.stdout)["deployments"]
    return finished.returncode, deployment


def test_what_a_release_lacks_for_graphs_is_named(home: Path) -> None:
    code, deployment = rehearse_two_layers(home, "--cuda-graph-max-bs", "8")
    assert (code, deployment["phases"]) == (1, [])
    assert deployment["refusal"] == (
        "RuntimeError: No module named 'sglang.srt.model_executor.runner': CUDA graphs of decode "
        "are not rehearsed on this release"
    )


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_what_a_release_lacks_for_its_scheduler_is_named_and_plain_batches_are_made(
    home: Path,
) -> None:
    code, deployment = rehearse_two_layers(home, *SPECULATION)
    assert (code, deployment["phases"]) == (1, [])
    assert "'sglang.srt.runtime_context': batches of its scheduler are not" in deployment["refusal"]
    code, deployment = rehearse_two_layers(home)
    assert (code, deployment["refusal"]) == (0, "")
    assert [phase["failure"] for phase in deployment["phases"]] == [""] * 4
