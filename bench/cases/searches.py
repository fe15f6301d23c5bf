"""How many runs `unfix bisect toggles` needs to find each toggle among all.

    .venv/bin/python -m bench.run searches [--release R]

Searches all toggles for each one that is fixed on the release, with a guard that proves it in
`bench/recorded/proofs/cpu.json.xz`, and counts the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measuring import RECORDED, Result, read_record
from harness.core import paths
from harness.fixes.patch_plan import Direction
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases
from harness.runs.bisect.guard_runner import GuardRunner
from harness.runs.bisect.outcome_rules import OutcomeRules
from harness.runs.bisect.search_driver import SearchDriver
from harness.runs.bisect.toggle_candidates import select_candidates
from harness.runs.bisect.trial_runner import VersionUnderTest
from harness.store.bisect.values import BisectSearch

PROVEN = RECORDED / "proofs" / "cpu.json.xz"


def guards_of(release: str) -> dict[str, tuple[str, list[str]]]:
    """Choose a guard for each toggle, with all of its toggles; one with few others is preferred."""
    cells = read_record(PROVEN)["cells"]
    proven = [c for c in cells if c["release"] == release and c["verdict"] == "proven"]
    guarded: dict[str, list[str]] = {}
    for cell in proven:
        guarded.setdefault(cell["guard"], []).append(cell["toggle"])
    found: dict[str, tuple[str, list[str]]] = {}
    for guard, toggles in sorted(guarded.items(), key=lambda item: (len(item[1]), item[0])):
        for toggle in toggles:
            found.setdefault(toggle, (guard, toggles))
    return found


def search_each_toggle(release: str, jobs: int, folder: Path) -> dict[str, Any]:
    """Search for each toggle in turn, on one imported release."""
    known = toggle_catalogue.load_catalogue()
    found = managed_releases.get_release(release)
    place = VersionUnderTest(release, found.open_sources(), found.python, found.folder)
    runner = GuardRunner(
        str(paths.project_folder() / "suites"),
        OutcomeRules(),
        folder / "guards",
        jobs=jobs,
        time_limit=300.0,
        memory_limit=4 << 30,
        device="cpu",
        profile="default",
        toggle_folders=[],
    )
    chosen = select_candidates(list(known), Direction.REVERT, place.tree, known, {})
    results = []
    try:
        for toggle, (guard, guarded) in sorted(guards_of(release).items()):
            runner.selected_test = guard
            search = BisectSearch("bench", "toggles", "", [guard])
            several = len(guarded) > 1
            began = time.perf_counter()
            part = SearchDriver(search, runner).search_toggles(place, chosen, find_all=several)
            right = part.verdict == "found" and part.minimal_sets == [[toggle]]
            if several:
                right = part.verdict == "found" and [toggle] in part.minimal_sets
            result = {
                "toggle": toggle,
                "guard": guard,
                "among": len(part.toggles),
                "found": part.minimal_sets,
                "all": several,
                "right": right,
                "runs": len(search.trials),
                "allowed": math.ceil(math.log2(len(part.toggles))) + 3,
                "seconds": round(time.perf_counter() - began, 2),
            }
            results.append(result)
            print(json.dumps(result), flush=True)
    finally:
        runner.close()
    plain = [result for result in results if not result["all"]]
    runs = sum(result["runs"] for result in results)
    return {
        "runs": runs,
        "seconds a run, one import for all": round(
            sum(result["seconds"] for result in results) / runs, 2
        ),
        "toggles": len(results),
        "right": sum(result["right"] for result in results),
        "most runs over what is allowed": max(r["runs"] - r["allowed"] for r in plain),
        "each": results,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", default="0.5.18")
    parser.add_argument("-j", "--jobs", type=int, default=1)


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        found = search_each_toggle(options.release, options.jobs, Path(folder))
    python = str(managed_releases.get_release(options.release).python)
    values = {"release": options.release, "jobs": options.jobs, "every toggle": found}
    yield Result(values, found["right"] == found["toggles"], python=python)
