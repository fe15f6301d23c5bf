"""`unfix bisect` over every toggle, and beside a search that starts each run afresh.

    python -m bench.searches [--release R] [--plain N] [--record FILE]

Searches all toggles for each one that is fixed on the release, with a guard that proves it in
`bench/recorded/proofs/cpu.json.xz`, and counts the runs. Then repeats the search for a seeded
sample as a user starts it: once by the guard's name, and once as `python -m pytest GUARD`, which
imports SGLang for each run.
"""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.recording import make_parser, read_record, record_result, run_unfix
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

PROVEN = paths.project_folder() / "bench" / "recorded" / "proofs" / "cpu.json.xz"


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


def time_search(words: list[str]) -> tuple[float, dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["bisect", "toggles", "--json", *words]
    return run_unfix(words, cwd=paths.project_folder(), env=environment)


def time_searches(release: str, jobs: int, count: int) -> dict[str, Any]:
    """Time whole searches, by the guard's name and with a fresh pytest for each run."""
    alone = {t: guard for t, (guard, guarded) in guards_of(release).items() if len(guarded) == 1}
    # Without the NPU's toggles: a fresh pytest cannot import the NPU's modules.
    chosen = random.Random(0).sample(sorted(t for t in alone if not t.startswith("23268")), count)
    pairs = []
    for toggle in chosen:
        guard = alone[toggle]
        options = ["--release", release, "-j", str(jobs), "--"]
        ours, found = time_search([*options, guard])
        plainly, same = time_search([*options, "python", "-m", "pytest", "-q", guard])
        sets = [search["toggle_searches"][0]["minimal_sets"] for search in (found, same)]
        pair = {
            "toggle": toggle,
            "guard": guard,
            "seconds": round(ours, 1),
            "runs": len(found["trials"]),
            "afresh": round(plainly, 1),
            "runs afresh": len(same["trials"]),
            "same": sets[0] == sets[1] == [[toggle]],
        }
        pairs.append(pair)
        print(json.dumps(pair), flush=True)
    ours, plainly = (sum(pair[name] for pair in pairs) for name in ("seconds", "afresh"))
    runs, runs_afresh = (sum(pair[name] for pair in pairs) for name in ("runs", "runs afresh"))
    return {
        "searches": pairs,
        "a search, times faster": round(plainly / ours, 1),
        "seconds a run, afresh": round(plainly / runs_afresh, 1),
        "seconds a run, of one search": round(ours / runs, 1),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--release", default="0.5.18")
    parser.add_argument("--plain", type=int, default=3, metavar="N")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        every = search_each_toggle(arguments.release, arguments.jobs, Path(folder))
    side_by_side = time_searches(arguments.release, arguments.jobs, arguments.plain)
    result = {
        "release": arguments.release,
        "jobs": arguments.jobs,
        "every toggle": every,
        "beside fresh runs": side_by_side,
    }
    record_result(
        result, arguments.record, python=str(managed_releases.get_release(arguments.release).python)
    )


if __name__ == "__main__":
    main()
