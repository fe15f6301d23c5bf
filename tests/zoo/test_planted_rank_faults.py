"""A fault that only several ranks can show is named by what they gave or called, by no time-out.

`rank_faults.yaml` has the faults. One process plants them one after another, each in its own row.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core import device, paths
from harness.releases import managed_releases

RELEASE = managed_releases.get_release("0.5.23")
HERE = Path(__file__).parent
FAULTS: list[dict[str, str]] = yaml.safe_load((HERE / "rank_faults.yaml").read_text())
OFF = ("several ranks: off by ", "idle ranks: off by ")

pytestmark = pytest.mark.skipif(
    not RELEASE.is_ready, reason="needs the environment of 0.5.23: ./unfix test makes it"
)


@pytest.fixture(scope="module")
def planted_runs() -> dict[str, dict[str, Any]]:
    """What the ranks gave under each fault."""
    finished = subprocess.run(
        [RELEASE.python, "-P", HERE / "rank_fault_program.py"],
        env={
            **os.environ,
            device.DEVICE_VARIABLE: device.VIRTUAL,
            "PYTHONPATH": str(paths.project_folder()),
        },
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    return {line["fault"]: line for line in lines}


def test_at_least_thirty_faults_have_names_of_their_own() -> None:
    assert len({fault["fault"] for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["fault"])
def test_a_fault_of_ranks_is_named(
    fault: dict[str, str], planted_runs: dict[str, dict[str, Any]]
) -> None:
    words = planted_runs[fault["fault"]]["words"]
    assert words.startswith(fault.get("says", OFF)), words


def test_each_row_gives_what_one_rank_gives_without_a_fault(
    planted_runs: dict[str, dict[str, Any]],
) -> None:
    rows = {fault["row"] for fault in FAULTS}
    assert {row: planted_runs[row]["words"] for row in rows} == dict.fromkeys(rows, "")
