"""A fuzzing run: slices over tests over releases, until the budget is spent.

Each release has its share of the budget.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time

from harness.core import paths
from harness.core.outcomes import RunStatus
from harness.core.signals import record_stop_signals
from harness.runs.fuzz.recorded_search import FuzzListener, RecordedSearch
from harness.runs.fuzz.release_search import FuzzRequest, TimeBudget
from harness.store.fuzz.values import FuzzRun
from harness.workers.engine import Engine


class FuzzDriver:
    """One run, from its first worker to its end."""

    def __init__(self, request: FuzzRequest, run: FuzzRun, listener: FuzzListener) -> None:
        self.request = request
        self.run = run
        self.listener = listener
        self.folder = paths.state_folder() / "fuzz" / f"run-{os.getpid()}"
        self.budget = TimeBudget(request.seconds)
        self.releases = self.budget.searches = [
            RecordedSearch(request, each, self.folder / each.name, self.budget, run, listener)
            for each in request.targets
        ]
        self.started = time.monotonic()

    def run_to_end(self) -> None:
        self.run.status = RunStatus.STOPPED
        # A second signal waits until what was found is stored.
        with record_stop_signals(), contextlib.ExitStack() as ending:
            # Each of these runs even if another one fails, for example on a full disk.
            ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
            ending.callback(self._update_listener)
            for release in self.releases:
                ending.callback(release.end_workers)
                ending.callback(release.rescue_failures)
            for _ in Engine(self.releases, self.request.jobs).iterate_turns():
                self._update_listener()
            self.run.status = RunStatus.FINISHED

    def _update_listener(self) -> None:
        now = time.monotonic()
        self.run.seconds = now - self.started
        if self.budget.deadline:
            self.run.search_seconds = now - (self.budget.deadline - self.request.seconds)
        self.run.coverage = [row for each in self.releases for row in each.measure_coverage()]
        self.listener.report_progress(self.run)
