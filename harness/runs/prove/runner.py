"""A run of `prove` or `lifecycle`: the engine over its releases, and the run's own row."""

from __future__ import annotations

import shutil

from harness.core import paths
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.runs.prove.release_pool import ProveListener, ReleasePool
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun
from harness.workers.engine import Engine


def execute_proof(
    request: ProveRequest, run: ProveRun, store: ProveTable, listener: ProveListener
) -> None:
    """Run until no task is left, or until Ctrl-C. Each ended side is stored either way."""
    folder = paths.state_folder() / "runs" / run.id
    pools = [
        ReleasePool(ReleasePlan(part, target), folder, run, store, listener)
        for target in request.targets
        for part in request.split_by_device()
    ]
    try:
        with store.record_run(run), Engine(pools, request.jobs) as engine:
            engine.run()
    finally:
        if not any(pool.plan.facts.problems for pool in pools):
            shutil.rmtree(folder, ignore_errors=True)  # the logs
