"""A fault that only several ranks can show makes their column red, and says which it is.

Each fault is planted in an architecture of its own, so one call has all of them.
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
OFF = "off by "
FAULTS = {  # by architecture: the fault, and how its report begins
    "opt": ("zoo-rank-without-a-sum", OFF),
    "olmo2": ("zoo-rank-gather-swapped", OFF),
    "granitemoe": ("zoo-rank-share-off-by-one", OFF),
    "xverse": (
        "zoo-rank-ends-early",
        "rank 0 waits in all_reduce for rank 1, which has ended",
    ),
    "stablelm": (
        "zoo-rank-skips-a-sum",
        "ranks 0 and 1 call different collectives: all_reduce and all_gather",
    ),
}

pytestmark = pytest.mark.skipif(
    not managed_releases.get_release(RELEASE).is_ready,
    reason=f"needs the environment of {RELEASE}: ./unfix test makes it",
)


def run_zoo(home: Path, names: list[str], faults: list[str]) -> dict[str, dict[str, Any]]:
    """Run the zoo on two ranks; return the claims of each architecture by their names."""
    (home / ".releases").symlink_to(paths.releases_folder())
    words = [*names, "--tp", "2", "--release", RELEASE, "--toggles", str(TOGGLES), "--json"]
    words += [word for fault in faults for word in ("--revert", fault)]
    finished = subprocess.run(
        [sys.executable, "-m", "harness", "zoo", *words, "-j", "2"],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode == int(bool(faults)), finished.stderr
    run = json.loads(finished.stdout)
    assert run["ranks"] == "tp 2"
    return {
        one["name"]: {claim["claim"]: claim for claim in one["claims"]}
        for one in run["architectures"]
    }


def test_two_ranks_give_what_one_gives_and_faults_of_either_are_named(tmp_path: Path) -> None:
    rows = run_zoo(tmp_path, [*FAULTS, "llama"], [fault for fault, _ in FAULTS.values()])
    assert rows["llama"]["several ranks"]["verdict"] == "holds"
    for name, (_, words) in FAULTS.items():
        claims = rows[name]
        assert claims["starts"]["verdict"] == "holds", name  # on one rank nothing is wrong
        assert claims["several ranks"]["verdict"] == "fails", name
        assert claims["several ranks"]["headline"].startswith(words), name
