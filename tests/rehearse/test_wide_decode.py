"""A fix whose bug shows at a deployment's size alone: named when it is out, silent when it is in.

Pull request 28788 widened the offsets of decode attention's partial results. The model of every
test run is DeepSeek-V2-Lite with one layer; `UNFIX_NIGHTLY=1` rehearses all of it.
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

RELEASE = "0.5.23"
# One layer leaves room for many more slots than the whole model has.
ARGUMENTS = ["--kv-cache-dtype", "fp8_e5m2", "--max-total-tokens", "6754259"]
TOGGLES = ["28788-grouped-stage1", "28788-stage2"]

pytestmark = pytest.mark.skipif(
    not managed_releases.get_release(RELEASE).is_ready,
    reason=f"needs the environment of {RELEASE}: ./unfix test makes it",
)


def rehearse(home: Path, layers: int | None, reverted: list[str]) -> dict[str, Any]:
    config = dict(read_model("deepseek-v2-lite").config)
    if layers is not None:
        config["num_hidden_layers"] = layers
    file = home / "lite.json"
    file.write_text(json.dumps(config))
    (home / ".releases").symlink_to(paths.releases_folder())
    words = ["--config", str(file), "--release", RELEASE, "--json"]
    words += [word for toggle in reverted for word in ("--revert", toggle)]
    finished = subprocess.run(
        [sys.executable, "-m", "harness", "rehearse", *words, "--", *ARGUMENTS],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode in (0, 1), finished.stderr
    run: dict[str, Any] = json.loads(finished.stdout)
    deployment: dict[str, Any]
    [deployment] = run["deployments"]
    assert not deployment["refusal"], deployment["detail"]
    assert [phase["failure"] for phase in deployment["phases"]] == [""] * 4
    return deployment


def list_overflows(deployment: dict[str, Any]) -> dict[str, str]:
    """Return the headline of each overflow by its kernel."""
    return {
        finding["kernel"].rpartition(":")[2]: finding["headline"]
        for finding in deployment["findings"]
        if finding["kind"] == "IntegerOverflow" and finding["rank"] == "reachable"
    }


def check_reverted(deployment: dict[str, Any]) -> None:
    overflows = list_overflows(deployment)
    assert set(overflows) == {"_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"}
    for headline in overflows.values():
        assert "4095 * 2097152 became -2097152" in headline
    extents = {launch["kernel"].rpartition(":")[2]: launch for launch in deployment["launches"]}
    assert extents["_fwd_kernel_stage2"]["programs"] > 0


def test_one_layer_names_both_lines_of_a_reverted_fix(tmp_path: Path) -> None:
    deployment = rehearse(tmp_path, 1, TOGGLES)
    check_reverted(deployment)
    # 1023 * 2097152 is less than 2^31, and 1024 * 2097152 is not: from 1,025 requests on.
    begins = [one["threshold"] for one in deployment["findings"] if one["threshold"]]
    assert len(begins) == 2
    assert all(command.endswith("--max-running-requests 1025") for command in begins)


def test_one_layer_says_nothing_with_the_fix_applied(tmp_path: Path) -> None:
    deployment = rehearse(tmp_path, 1, [])
    assert list_overflows(deployment) == {}
    kernels = {launch["kernel"].rpartition(":")[2] for launch in deployment["launches"]}
    assert {"_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"} <= kernels


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_the_whole_model_names_both_lines_of_a_reverted_fix(tmp_path: Path) -> None:
    check_reverted(rehearse(tmp_path, None, TOGGLES))
