"""A fuzzing run over a real release: a guard with its fix reverted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS, wait_until

from harness.core import paths
from harness.releases import managed_releases
from harness.runs.fuzz.failure_files import read_failure

RELEASE = "0.5.18"
GUARD = (
    "suites/kv_indices/test_kv_indices.py::"
    "test_a_graph_row_of_flashinfer_holds_what_the_last_step_writes"
)


@pytest.mark.skipif(
    not managed_releases.get_release(RELEASE).is_ready,
    reason=f"needs the environment of {RELEASE}: ./unfix test makes it",
)
def test_a_fix_that_is_out_is_found_shrunk_and_written(tmp_path: Path) -> None:
    (tmp_path / ".releases").symlink_to(paths.releases_folder())
    words = ["--release", RELEASE, "--revert", "27338", "--for", "10m", "--json", "-j", "1"]
    going = subprocess.Popen(
        [sys.executable, "-m", "harness", "fuzz", GUARD, *words],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The import's time varies: the run ends once it has found the failure.
    wait_until(lambda: has_shrunk(tmp_path))
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=PATIENCE_SECONDS)
    assert going.returncode == 130, err
    night: dict[str, Any] = json.loads(out)
    (kept,) = night["failures"]
    found = read_failure(Path(kept["file"]))
    assert (found.test, found.release, found.under) == (GUARD, RELEASE, [("27338", "revert")])
    assert found.arguments == [
        "batch=Batch(lengths=(1,), topk=2, steps=2, page=1, context=3, slots=1)"
    ]
    assert found.examples <= 3
    assert night["tests"][0]["targets"]["fullness of a row"] > 1
    flashinfer = {row["file"].rpartition("/")[2]: row for row in night["coverage"]}
    row = flashinfer["flashinfer_backend.py"]
    assert 0 < row["toggled"] <= row["toggled_of"] < row["lines_of"]


def has_shrunk(home: Path) -> bool:
    files = (home / ".unfix" / "fuzz" / "failures").glob("*.json")
    return any(read_failure(file).shrunk for file in files)
