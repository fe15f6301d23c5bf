"""A large matrix on a simulated fleet: the real plan values, order of a run, store, merge and page.

    .venv/bin/python -m bench.run fleet [--cells N] [--workers N] [--shards N]

Only the work is made up: time is simulated, and a seed decides failures, stragglers and lost
workers. Every shard is run into a store of its own, as on a machine of its own; the stores are
merged, joined, and the page is written.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.measuring import Result
from harness.cli.run_lookup import merge_store
from harness.core.outcomes import Outcome, RunStatus
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import shards
from harness.runs.matrix.cell_attempt import CellTask, get_timestamp
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan
from harness.runs.matrix.cell_scheduler import (
    CellExecutor,
    CellScheduler,
    FinishedAttempt,
    RetryRules,
    RunLocation,
)
from harness.runs.matrix.shards import ShardPart, merge_shards
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import FAILURES, CellAttempt, MatrixRun
from reports.matrix import page as matrix_page

AXES = {
    "release": ["0.5.9", "0.5.10", "0.5.12", "0.5.13", "0.5.16", "0.5.18", "0.5.20", "0.5.23"],
    "device": ["cpu", "h200"],
    "prefill": ["triton", "fa3", "flashinfer", "flashmla_sparse", "torch_native"],
    "decode": ["triton", "fa3", "flashinfer", "flashmla"],
    "kv": ["auto", "fp8_e4m3", "fp8_e5m2"],
    "page": ["1", "16", "64"],
    "speculative": ["none", "EAGLE", "EAGLE3"],
    "cuda-graph": ["on", "off"],
    "prefix-cache": ["on", "off"],
    "chunk": ["256", "2048", "8192"],
}


TEXT_BY_FAILURE = {
    Outcome.FAILED: "exit code 1",
    Outcome.ERROR: "exit code 2",
    Outcome.SEGFAULT: "SIGSEGV",
    Outcome.HANG: "ran past its limit",
}


class FleetRates(msgspec.Struct, frozen=True):
    """How often an attempt fails, loses its worker, or takes ten times as long."""

    failure_rate: float = 0.03
    loss_rate: float = 0.01  # a dead worker, which another one replaces
    straggler_rate: float = 0.02  # ten times the duration


class SimulatedFleet(CellExecutor):
    """A number of workers, each with one cell at a time."""

    def __init__(self, workers: int, seed: int = 0, rates: FleetRates | None = None) -> None:
        super().__init__()
        self.workers = workers
        self.rates = rates or FleetRates()
        self.generator = random.Random(seed)
        self.clock = 0.0
        self.running: list[tuple[float, int, FinishedAttempt]] = []  # a heap by end time
        self.started_attempts: list[tuple[str, int]] = []  # all attempts, in order

    def describe_shortage(self, needs: MachineNeeds) -> str:
        return ""

    def has_room(self, needs: MachineNeeds) -> bool:
        return len(self.running) < self.workers

    def start(self, task: CellTask, needs: MachineNeeds) -> None:
        self.started_attempts.append((task.cell_id, task.attempt_number))
        seconds = self.generator.lognormvariate(4, 0.5)
        if self.generator.random() < self.rates.straggler_rate:
            seconds *= 10
        outcome, how = self._draw_outcome()
        output = f"{how} in {task.cell_id}\n" * 20 if outcome in FAILURES else "ok\n"
        attempt = CellAttempt(
            *(task.attempt_number, outcome, how, get_timestamp(), seconds, seconds * task.gpus),
            f"worker-{len(self.started_attempts) % self.workers}",
            output,
        )
        ended = FinishedAttempt(task.cell_id, attempt)
        heapq.heappush(self.running, (self.clock + seconds, len(self.started_attempts), ended))
        self.report_finished()

    def _draw_outcome(self) -> tuple[Outcome, str]:
        drawn = self.generator.random()
        if drawn < self.rates.loss_rate:
            return Outcome.LOST, "the node died"
        if drawn < self.rates.loss_rate + self.rates.failure_rate:
            outcome = self.generator.choice(list(TEXT_BY_FAILURE))
            return outcome, TEXT_BY_FAILURE[outcome]
        return Outcome.PASSED, "exit code 0"

    def collect_finished(self) -> list[FinishedAttempt]:
        """Return the attempts that end within half a simulated second after the next end."""
        until = self.running[0][0] + 0.5 if self.running else 0.0
        ended = []
        while self.running and self.running[0][0] <= until:
            self.clock, _, attempt = heapq.heappop(self.running)
            ended.append(attempt)
        if self.running:
            self.report_finished()
        return ended

    def stop(self) -> None:
        self.running.clear()


def make_plan(count: int) -> MatrixPlan:
    """Plan `count` cells, spread evenly over all combinations."""
    total = math.prod(map(len, AXES.values()))
    every = itertools.product(*AXES.values())
    chosen = itertools.islice(itertools.islice(every, 0, None, max(1, total // count)), count)
    cells = [
        MatrixCell(
            f"{number:05x}cell",
            dict(zip(AXES, values, strict=True)),
            "prove",
            ["unfix", "prove", "--release", values[0], "--json"],
            {},
            MachineNeeds(gpus=1.0 if values[1] == "h200" else 0.0),
            600.0,
            "covering",
        )
        for number, values in enumerate(chosen)
    ]
    return MatrixPlan("fleet", f"fleet-{count}", AXES, cells, [], [], 0.0)


def run_shard(store: Store, plan: MatrixPlan, number: int, of: int, workers: int) -> SimulatedFleet:
    """Run one machine's share, as `unfix matrix run --shard` does."""
    cells = plan.cells[number - 1 :: of]
    run = MatrixRun(
        id=f"matrix-{plan.digest}-{number}",
        name=plan.name,
        file="fleet.yaml",
        plan=plan.digest,
        total=len(plan.cells),
        axes=plan.axes,
        started=f"2026-01-01T00:00:{number:02}+00:00",
        number=number,
        of=of,
        cells=shards.make_unrun_cells(cells),
    )
    MatrixTable(store).begin(run)
    fleet = SimulatedFleet(workers, seed=number)
    place = RunLocation(run.id, Path("unused"), Path("unused"))
    rules = RetryRules(retries=1)
    running = CellScheduler(
        cells, fleet, place, rules, lambda ended: MatrixTable(store).save_attempts(run.id, ended)
    )
    running.run()
    run.status, run.seconds = RunStatus.FINISHED, fleet.clock
    MatrixTable(store).save(run)
    return fleet


def list_problems(plan: MatrixPlan, whole: MatrixRun, fleets: list[SimulatedFleet]) -> list[str]:
    """List cells and attempts that are lost or doubled."""
    found = []
    wanted, returned = [cell.identity for cell in plan.cells], [c.identity for c in whole.cells]
    if Counter(wanted) != Counter(returned):
        found.append(f"{len(wanted)} cells were planned and {len(returned)} came back")
    started = Counter(attempt for fleet in fleets for attempt in fleet.started_attempts)
    stored = Counter((cell.identity, att.number) for cell in whole.cells for att in cell.attempts)
    if started != stored:
        found.append(f"{started.total()} attempts were started and {stored.total()} are kept")
    if open_ones := [cell.identity for cell in whole.cells if cell.outcome is None]:
        found.append(f"{len(open_ones)} cells have no outcome")
    return found


def measure_fleet(count: int, workers: int, shards: int, folder: Path) -> dict[str, Any]:
    plan = make_plan(count)
    begun = time.perf_counter()
    fleets = []
    for number in range(1, shards + 1):
        store = Store(folder / f"{number}.sqlite")
        fleets.append(run_shard(store, plan, number, shards, workers // shards))
        store.close()
    stored = time.perf_counter()
    here = Store(folder / "here.sqlite")
    parts = []
    for number in range(1, shards + 1):
        file = folder / f"{number}.sqlite"
        merge_store(here, file)
        run = MatrixTable(here).find(f"matrix-{plan.digest}-{number}")
        assert run is not None
        parts.append(ShardPart(run, str(file)))
    whole = merge_shards(parts)
    merged = time.perf_counter()
    page = folder / "page.html"
    page.write_text(matrix_page.render_page(whole))
    written = time.perf_counter()
    return {
        "cells": len(whole.cells),
        "workers": workers,
        "shards": shards,
        "attempts": sum(len(cell.attempts) for cell in whole.cells),
        "outcomes": dict(sorted(whole.counts.items())),
        "lost_then_rerun": sum(
            bool(cell.lost_attempt_count) and cell.outcome is not Outcome.LOST
            for cell in whole.cells
        ),
        "simulated_hours": round(sum(cell.seconds for cell in whole.cells) / 3600, 1),
        "run_and_store_s": round(stored - begun, 2),
        "merge_s": round(merged - stored, 2),
        "page_s": round(written - merged, 2),
        "page_mb": round(page.stat().st_size / 1e6, 2),
        "lost_or_doubled": list_problems(plan, whole, fleets),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--shards", type=int, default=8)


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        found = measure_fleet(options.cells, options.workers, options.shards, Path(folder))
    yield Result(found, not found["lost_or_doubled"])
