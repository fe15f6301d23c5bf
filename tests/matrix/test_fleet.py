"""A simulated fleet: with deaths, stragglers and failures no cell is lost or run twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from bench import fleet as bench
from bench.simulated_fleet import FleetRates, SimulatedFleet
from harness.runs.matrix import shards
from harness.runs.matrix.cell_scheduler import MAX_LOSSES, CellScheduler, RetryRules, RunLocation
from harness.store.database import Store
from harness.store.matrix.values import AttemptOutcome as Outcome
from harness.store.matrix.values import CellAttempt, MatrixRun


def test_two_thousand_cells_on_two_hundred_workers_in_four_shards(tmp_path: Path) -> None:
    begun = time.process_time()
    found = bench.measure_fleet(2000, 200, 4, tmp_path)
    assert time.process_time() - begun < 12  # the page included
    assert found["lost_or_doubled"] == []
    assert found["cells"] == 2000
    assert sum(found["outcomes"].values()) == 2000
    # Each kind of event occurred.
    assert {"green", "flaky"} <= set(found["outcomes"])
    assert found["lost_then_rerun"] > 5
    assert found["attempts"] > 2000


def run_simulated_fleet(count: int, odds: FleetRates, rules: RetryRules, file: Path) -> MatrixRun:
    plan = bench.make_plan(count)
    store = Store(file)
    run = MatrixRun("m-1", "fleet", "", plan.digest, count, {}, "then")
    run.cells = shards.make_unrun_cells(plan.cells)
    store.matrix.begin(run)

    def keep(ended: list[tuple[str, CellAttempt]]) -> None:
        store.matrix.save_attempts(run.id, ended)

    fleet, place = SimulatedFleet(50, 7, odds), RunLocation("m-1", file, file)
    CellScheduler(plan.cells, fleet, place, rules, keep).run()
    found = store.matrix.find("m-1")
    assert found is not None
    return found


def test_a_fleet_that_dies_all_the_time_ends_and_says_so(tmp_path: Path) -> None:
    rates = FleetRates(failure_rate=0.0, loss_rate=0.6)
    run = run_simulated_fleet(300, rates, RetryRules(), tmp_path / "runs.sqlite")
    assert set(run.counts) == {"green", "lost"}
    lost = [one for one in run.cells if one.outcome is Outcome.LOST]
    assert {one.lost_attempt_count for one in lost} == {MAX_LOSSES}
    assert max(len(one.attempts) for one in run.cells) == MAX_LOSSES


def test_retries_are_counted_and_bounded(tmp_path: Path) -> None:
    rates = FleetRates(failure_rate=0.5, loss_rate=0.0)
    run = run_simulated_fleet(300, rates, RetryRules(retries=2), tmp_path / "runs.sqlite")
    for one in run.cells:
        failed = sum(attempt.outcome.is_failure for attempt in one.attempts)
        assert failed <= 3
        assert (one.outcome is Outcome.GREEN) is (failed == 0)
        assert (one.outcome is Outcome.FLAKY) is (0 < failed < 3)
        assert Counter(attempt.last for attempt in one.attempts)[True] == 1
