"""Faults of a real release: a kernel's, a function's, and none that stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core import paths
from harness.releases import managed_releases

RELEASE = managed_releases.get_release("0.5.18")
SUITES = ("int64_indices/test_combined_indices.py", "prefill_tail")
FATES = {
    ("_combine_topk_swa_indices_kernel", "narrow-int64", "killed", "memory report"),
    ("_eagle_prefill_tail_tokens", "keep-stale", "killed", "assertion"),
}


def read_file_states() -> dict[str, tuple[int, int]]:
    """Return the state of every file of the package, so that a write shows."""
    package = Path(RELEASE.open_sources().describe_location("sglang/__init__.py")).parent
    found = (file for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc")
    facts = {str(file): file.stat() for file in found}
    return {name: (fact.st_size, fact.st_mtime_ns) for name, fact in facts.items()}


@pytest.mark.skipif(
    not RELEASE.is_ready, reason=f"needs the environment of {RELEASE.name}: ./unfix test makes it"
)
def test_faults_of_a_kernel_and_of_a_function_are_killed_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / ".releases").symlink_to(paths.releases_folder())
    before = read_file_states()
    words = ["25418-combine-int64", "prefill_rotation", "--release", RELEASE.name]
    words += ["--operators", "narrow-int64,keep-stale", "--profile", "smoke", "--examples", "1"]
    words += [word for suite in SUITES for word in ("--suite", suite)]
    words += ["-j", "1", "--at-least", "100", "--json", "--html", str(tmp_path / "page.html")]
    done = subprocess.run(
        [sys.executable, "-m", "harness", "mutate", *words],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    faults = [(fated["fault"], fated) for fated in run["fates"]]
    fates = {
        (fault["qualname"], fault["operator"], result["fate"], result["how"])
        for fault, result in faults
    }
    assert fates == FATES
    assert all(fated["ran"] and fated["headline"] for _, fated in faults)
    assert read_file_states() == before
    assert {file.name for file in (tmp_path / ".unfix").iterdir()} <= {
        "kernels",
        "reach",
        "cache",
        "runs",
        "runs.sqlite",
    }
