"""A large matrix on a simulated fleet: the real plan values, order of a run, store, merge and page.

    python -m bench.fleet [--cells N] [--workers N] [--shards N] [--record FILE]

Only the work is made up (`bench/simulated_fleet.py`). Every shard is run into a store of its
own, as on a machine of its own; the stores are merged, joined, and the page is written.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.recording import make_parser, record_result
from bench.simulated_fleet import SimulatedFleet
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import shards
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan
from harness.runs.matrix.cell_scheduler import CellScheduler, RetryRules, RunLocation
from harness.runs.matrix.shards import ShardPart, merge_shards
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import AttemptOutcome, MatrixRun
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
    run.status, run.seconds = "finished", fleet.clock
    MatrixTable(store).save(run)
    return fleet


def list_problems(plan: MatrixPlan, whole: MatrixRun, fleets: list[SimulatedFleet]) -> list[str]:
    """List cells and attempts that are lost or doubled."""
    found = []
    wanted, returned = [cell.identity for cell in plan.cells], [c.identity for c in whole.cells]
    if Counter(wanted) != Counter(returned):
        found.append(f"{len(wanted)} cells were planned and {len(returned)} came back")
    started = Counter(one for fleet in fleets for one in fleet.started_attempts)
    stored = Counter((c.identity, one.number) for c in whole.cells for one in c.attempts)
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
        here.merge(file)
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
            bool(cell.lost_attempt_count) and cell.outcome is not AttemptOutcome.LOST
            for cell in whole.cells
        ),
        "simulated_hours": round(sum(cell.seconds for cell in whole.cells) / 3600, 1),
        "run_and_store_s": round(stored - begun, 2),
        "merge_s": round(merged - stored, 2),
        "page_s": round(written - merged, 2),
        "page_mb": round(page.stat().st_size / 1e6, 2),
        "lost_or_doubled": list_problems(plan, whole, fleets),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--show", type=Path, metavar="HTML", help="keep the page there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure_fleet(arguments.cells, arguments.workers, arguments.shards, Path(folder))
        if arguments.show:
            arguments.show.write_bytes((Path(folder) / "page.html").read_bytes())
    record_result(found, arguments.record)
    return 1 if found["lost_or_doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
