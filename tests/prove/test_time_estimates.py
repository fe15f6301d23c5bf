"""The estimated time of a run, by stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import Outcome, RunStatus
from harness.fixes.registry import toggle_catalogue
from harness.runs.prove import time_estimate
from harness.runs.prove.plan import ProveRequest
from harness.store.prove.values import CellResult, ProveRun, ReleaseFacts, SideResult
from harness.workers.release_target import ReleaseTarget

TOGGLE = next(iter(toggle_catalogue.load_catalogue()))
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "profile": "smoke",
    "words": [],
    "k": None,
    "shard": "1/1",
    "jobs": 2,
}


def store_earlier_run(*releases: str, seconds: float, **settings: object) -> ProveRun:
    """Store a run whose imports took 20 s each, and whose four tests on each release 10 s each."""
    sides = {side: SideResult(side, Outcome.PASSED, seconds=10) for side in ("fixed", "buggy")}
    cells = [
        CellResult(guard, TOGGLE.id, name, "cpu", "fixed", sides=sides)
        for name in releases
        for guard in ("one", "two")
    ]
    facts = [ReleaseFacts(name, "cpu", seconds_to_start=20) for name in releases]
    return ProveRun(
        *("run", "prove", "", RunStatus.FINISHED, seconds, []),
        *({**SETTINGS, **settings}, facts, [], cells),
    )


def estimate_time(run: ProveRun, *releases: str, jobs: int = 2) -> float | None:
    tree: Any = None
    targets = [ReleaseTarget(name, Path("python"), tree) for name in releases]
    request = ProveRequest("prove", targets, [TOGGLE], has_named_toggles=False, jobs=jobs)
    new_run = ProveRun("new", "prove", "", settings=SETTINGS)
    return time_estimate.estimate_run_seconds(request, new_run, [run])


@pytest.mark.parametrize(
    ("releases", "jobs", "expected"),
    [(["0.5.9"], 2, 40), (["0.5.9"], 1, 60), (["0.5.9", "0.5.18"], 2, 60), (["0.5.23"], 2, None)],
)
def test_imports_run_one_ahead_and_tests_side_by_side(
    releases: list[str], jobs: int, expected: float | None
) -> None:
    assert (
        estimate_time(store_earlier_run("0.5.9", "0.5.18", seconds=60), *releases, jobs=jobs)
        == expected
    )


def test_a_slow_machine_is_known_by_its_last_run() -> None:
    assert estimate_time(store_earlier_run("0.5.9", seconds=60), "0.5.9") == 60


@pytest.mark.parametrize(
    "other", [{"profile": "nightly"}, {"device": "cuda"}, {"words": ["my_suites"]}]
)
def test_runs_of_another_kind_give_no_estimate(other: dict[str, object]) -> None:
    assert estimate_time(store_earlier_run("0.5.9", seconds=9, **other), "0.5.9") is None
