"""A worker of a mutation run: it imports SGLang once and forks each look at a fault.

Every test of the suites is a guard here. No fault is ever put into this process.
"""

from __future__ import annotations

import contextlib
import importlib
import time
import warnings
from collections import Counter

import pytest

from harness.core import machine, preloading
from harness.core.errors import UnfixError
from harness.patching import live_engine, module_variants
from harness.runs.mutate.fault_attempt import FaultAttemptRun, PreparedGuard, read_attempt_report
from harness.runs.mutate.messages import (
    FaultAttemptReport,
    FaultAttemptRequest,
    ImportModulesRequest,
    MutationWorkerReady,
    MutationWorkerRequest,
    MutationWorkerSettings,
)
from harness.store.prove.values import SideResult
from harness.workers.messages import TestRequest
from harness.workers.pytest_session import WorkerSession, run_worker

FORK_SLACK_SECONDS = (
    60.0  # seconds beyond what its guards may take, for a fork that hangs between them
)


class MutationWorker(WorkerSession[MutationWorkerSettings]):
    """One that looks at faults."""

    request_type = FaultAttemptRequest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = self.filter_runnable(session.items)
        self.guards = list(map(PreparedGuard, self.items))
        names = [item.nodeid for item in self.items]
        for name, count in Counter(names).items():
            if count > 1:
                self.problems.append(f"{count} tests are called {name}")
        if self.refuse_without_forks():
            return True
        self.freeze_for_forks(session)
        self.send_message(
            MutationWorkerReady(
                guards=names,
                seconds=time.time() - self.started,
                release=str(live_engine.engine.sources.version),
                versions=machine.collect_versions("hypothesis"),
                problems=self.problems,
            )
        )
        self.serve_forks()
        return True

    def accept_requests(self) -> None:
        for wanted in self.receive_requests(MutationWorkerRequest):
            if isinstance(wanted, ImportModulesRequest):
                _import_modules(wanted.modules)
                self.renew_supervisors()
            else:
                self.dispatch_request(wanted)

    def run_request(self, request: FaultAttemptRequest) -> SideResult:
        for asked in request.guards:
            with contextlib.suppress(UnfixError):  # the guard itself will meet it, and say it
                self.guards[asked.guard_number].build_changed_code()
        if request.fault is not None and (
            source := live_engine.engine.sources.read(request.fault.module)
        ):
            module_variants.preload_module_text(source.text, source.path)
        if not live_engine.engine.is_idle:
            raise RuntimeError("a guard's toggles could not be taken out again")
        seconds = sum(asked.seconds for asked in request.guards) + FORK_SLACK_SECONDS
        looking = FaultAttemptRun(request, self.guards, self.folder, self.recorder)
        order = TestRequest(0, request.serial, seconds, request.memory_bytes)
        order.fork_limit *= request.example_factor * len(request.guards)
        about = {change.id: change.verb for change in looking.changes}
        return self.run_in_own_process(order, looking.run, about)

    def make_reply(self, request: FaultAttemptRequest, side: SideResult) -> FaultAttemptReport:
        return read_attempt_report(self.folder, request, side)


def _import_modules(modules: list[str]) -> None:
    """Import what forks would, one by one; what does not import here is left to who needs it."""
    with warnings.catch_warnings(action="ignore"):
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    preloading.freeze_for_forks()


if __name__ == "__main__":
    run_worker(MutationWorker, MutationWorkerSettings)
