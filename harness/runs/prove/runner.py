"""A run of `prove` or `lifecycle`: the engine over its releases, and the run's own row."""

from __future__ import annotations

import shutil
import time
from functools import partial

from harness.core import paths
from harness.runs.prove.earlier_runs import iterate_earlier_repetitions
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.runs.prove.release_pool import ProveListener, ReleasePool
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun
from harness.workers.engine import Engine


def execute_proof(
    request: ProveRequest, run: ProveRun, store: ProveTable, listener: ProveListener
) -> None:
    """Run until no task is left, or until Ctrl-C. Each ended side is stored either way."""
    started = time.monotonic() - run.seconds
    folder = paths.state_folder() / "runs" / run.id
    earlier = partial(iterate_earlier_repetitions, store, run)
    pools = [
        ReleasePool(ReleasePlan(part, target, earlier), folder, run, store, listener)
        for target in request.targets
        for part in request.split_by_device()
    ]
    engine = Engine(pools, request.jobs)
    run.status = "stopped"
    store.begin(run)
    try:
        engine.run()
        run.status = "finished"
    finally:
        engine.end()
        run.seconds = time.monotonic() - started
        store.save(run)
        if not any(pool.plan.facts.problems for pool in pools):
            shutil.rmtree(folder, ignore_errors=True)  # the logs
