"""`unfix prove` beside the plain way: a fresh process for every guard, fixed and buggy.

    python -m bench.prove [--release R] [--cells N] [--record FILE]    (in unfix's own environment)

The plain way runs `pytest GUARD` and `SGLANG_DEBUG_REVERT_PR=ID pytest GUARD` (or with ENABLE,
where the release has the bug), as many at a time as `prove` does, with the same profile, on the
cells that `prove` proved just before. Both must say the same of every cell.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.recording import make_parser, record_result, run_unfix
from harness.core import paths
from harness.releases import managed_releases


def time_proof(release: str, profile: str, jobs: int) -> tuple[float, dict[str, Any]]:
    """Time a whole run of `unfix prove`, as a user starts it."""
    words = ["prove", "--release", release, "--profile", profile, "-j", str(jobs), "--json"]
    return run_unfix(words, program=[str(paths.project_folder() / "unfix")])


def run_plain_side(
    cell: dict[str, Any], side: str, profile: str, python: Path
) -> tuple[float, bool]:
    """Run one side of a cell in a fresh process: its seconds, and whether the guard passed."""
    environment = {**os.environ, "PYTHONPATH": str(paths.project_folder())}
    environment |= {"OMP_NUM_THREADS": "1"}
    if side != cell["state"]:
        name = "REVERT" if side == "buggy" else "ENABLE"
        environment[f"SGLANG_DEBUG_{name}_PR"] = cell["toggle"]
    with tempfile.TemporaryDirectory() as folder:
        environment["UNFIX_ATTESTATIONS"] = folder
        begun = time.perf_counter()
        done = subprocess.run(
            [python, "-m", "pytest", cell["guard"], "--profile", profile],
            env=environment,
            cwd=paths.project_folder(),
            capture_output=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:])
    return time.perf_counter() - begun, done.returncode == 0


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--release", default=managed_releases.get_newest_release().name)
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cells", type=int, help="so many of the cells plainly, chosen by a seed")
    arguments = parser.parse_args()
    release = managed_releases.get_release(arguments.release)

    seconds, run = time_proof(release.name, arguments.profile, arguments.jobs)
    cells = [cell for cell in run["cells"] if cell["verdict"] == "proven"]
    chosen = cells
    if arguments.cells:
        chosen = random.Random(0).sample(cells, min(arguments.cells, len(cells)))
    tasks = [(cell, side) for cell in chosen for side in ("fixed", "buggy")]
    begun = time.perf_counter()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        plain = list(
            pool.map(lambda task: run_plain_side(*task, arguments.profile, release.python), tasks)
        )
    spent = time.perf_counter() - begun
    differing = [
        f"{cell['guard']} {side}"
        for (cell, side), (_, passed) in zip(tasks, plain, strict=True)
        if passed != (side == "fixed")
    ]

    overhead = [sum(side["overhead"] for side in cell["sides"].values()) for cell in cells]
    a_cell = spent / len(chosen)
    result = {
        "release": release.name,
        "profile": arguments.profile,
        "jobs": arguments.jobs,
        "cells": len(cells),
        "prove_s": round(seconds, 1),
        "prove_start_s": round(run["releases"][0]["seconds_to_start"], 1),
        "prove_a_cell_s": round(seconds / len(cells), 2),
        "beyond_the_test_s": {
            "median": round(statistics.median(overhead), 3),
            "most": round(max(overhead), 3),
        },
        "plain_cells": len(chosen),
        "plain_s": round(spent, 1),
        "plain_a_cell_s": round(a_cell, 2),
        "plain_process_median_s": round(statistics.median(took for took, _ in plain), 2),
        "times_faster": round(a_cell * len(cells) / seconds, 1),
        "verdicts_that_differ": differing,
    }
    record_result(result, arguments.record, python=str(release.python))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
