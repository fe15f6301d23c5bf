"""What Ray costs a cell: the same sleeping cells here and on a Ray cluster, in one run.

    python -m bench.ray_cells [--cells N] [--nodes N] [--seconds S] [--record FILE]

The cluster is real: so many nodes of one CPU each, on this machine. Cells sleep, so that as many as
there are nodes can run at a time on fewer cores, here as there. One cell a node is run before, and
reported apart: a node starts its first worker then. Both sides must come to the same outcomes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.recording import make_parser, record_result
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix.cell_plan import MatrixCell
from harness.runs.matrix.cell_scheduler import CellExecutor, CellScheduler, RetryRules, RunLocation
from harness.runs.matrix.local_executor import LocalExecutor, MachineDevices
from harness.runs.matrix.ray_executor import RayExecutor
from harness.store.matrix.values import CellAttempt


def make_cells(count: int, seconds: float, name: str) -> list[MatrixCell]:
    """Make sleeping cells; every fifth one fails, so that outcomes differ."""
    return [
        MatrixCell(
            *(f"{name}-{n}", {}, "sleep", ["sh", "-c", f"sleep {seconds}; exit {int(n % 5 == 4)}"]),
            *({}, MachineNeeds(), seconds + 60, "bench"),
        )
        for n in range(count)
    ]


def run_cells(
    some: list[MatrixCell], executor: CellExecutor, folder: Path
) -> tuple[float, dict[str, CellAttempt]]:
    attempts: dict[str, CellAttempt] = {}
    begun = time.perf_counter()
    CellScheduler(
        some, executor, RunLocation("bench", folder, folder), RetryRules(), attempts.update
    ).run()
    return time.perf_counter() - begun, attempts


def measure_executor(
    executor: CellExecutor, nodes: int, count: int, seconds: float
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        first, _ = run_cells(make_cells(nodes, 0, "first"), executor, Path(name))
        wall, attempts = run_cells(make_cells(count, seconds, "cell"), executor, Path(name))
    rounds = -(-count // nodes)
    return {
        "first_s": round(first, 2),
        "wall_s": round(wall, 2),
        "a_cell_beyond_its_sleep_s": round(wall / rounds - seconds, 3),
        "own_seconds_median": round(statistics.median(one.seconds for one in attempts.values()), 3),
        "outcomes": {name: one.outcome.value for name, one in sorted(attempts.items())},
    }


def main() -> int:
    from ray.cluster_utils import Cluster

    parser = make_parser(__doc__)
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    sizes = arguments.nodes, arguments.cells, arguments.seconds

    local_executor = LocalExecutor(arguments.nodes, MachineDevices(float(arguments.nodes)))
    local = measure_executor(local_executor, *sizes)
    local_executor.close()

    store = 80 << 20
    head = {"num_cpus": 0, "object_store_memory": store, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(arguments.nodes):
        cluster.add_node(num_cpus=1, object_store_memory=store)
    begun = time.perf_counter()
    ray = RayExecutor(cluster.address)
    connected = time.perf_counter() - begun
    on_ray = measure_executor(ray, *sizes)
    ray.close()
    cluster.shutdown()

    outcomes = [one.pop("outcomes") for one in (local, on_ray)]
    overhead = on_ray["wall_s"] / local["wall_s"] - 1
    result = {
        "cells": arguments.cells,
        "nodes": arguments.nodes,
        "cell_s": arguments.seconds,
        "local": local,
        "ray": {"connect_s": round(connected, 2), **on_ray},
        "ray_beyond_local_percent": round(100 * overhead, 2),
        "ray_beyond_the_sleep_percent": round(
            100 * on_ray["a_cell_beyond_its_sleep_s"] / arguments.seconds, 2
        ),
        "outcomes_that_differ": sorted(
            name for name in outcomes[0] if outcomes[0][name] != outcomes[1].get(name)
        ),
    }
    record_result(result, arguments.record)
    return 1 if result["outcomes_that_differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
