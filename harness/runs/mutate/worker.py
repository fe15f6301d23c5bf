"""A worker of a mutation run: it imports SGLang once and forks a process for each attempt.

Every test of the suites is a guard here. A fault is applied in a fork only, never in this process.
On a GPU a process makes many attempts, one after another (`workers/shared_process`).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core import device, machine, preloading
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.guards import plugin, preparations, pytest_adapter
from harness.patching import live_engine, original_code
from harness.runs.mutate.fault_attempt import (
    PREPARATION_SECONDS,
    FaultAttemptRun,
    PreparedGuard,
    is_failure_doubtful,
    read_attempt_report,
)
from harness.runs.mutate.messages import (
    FaultAttemptReport,
    FaultAttemptRequest,
    GuardRequest,
    ImportModulesRequest,
    MutationWorkerReady,
    MutationWorkerRequest,
)
from harness.store.prove.values import SideResult
from harness.workers import loaded_programs, shared_runs, supervisor
from harness.workers.messages import TestRequest, WorkerSettings
from harness.workers.pytest_session import WorkerSession, run_worker
from harness.workers.shared_process import SharedRun
from harness.workers.supervisor import TestFiles

FORK_SLACK_SECONDS = 60.0  # beyond its guards' limits, for a fork that hangs between them


class MutationWorker(WorkerSession[WorkerSettings]):
    """A worker that runs guards in forks, with or without a fault."""

    request_type = FaultAttemptRequest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = self.filter_runnable(session.items)
        self.guards = list(map(PreparedGuard, self.items))
        names = [item.nodeid for item in self.items]
        for name, count in Counter(names).items():
            if count > 1:
                self.problems.append(f"{count} tests are called {name}")
        if not self.choose_processes(session):
            return True
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
        for message in self.receive_requests(MutationWorkerRequest):
            if isinstance(message, ImportModulesRequest):
                self._import_modules(message.modules)
            else:
                self.dispatch_request(message)

    def _import_modules(self, modules: list[str]) -> None:
        """Have modules imported before the next attempt."""
        names = [name for name in modules if not is_cpp_path(name)]
        if self.shared_runs.starts_processes:
            self.shared_runs.modules.add(names)
            return
        shared_runs.import_modules(names)
        preloading.freeze_for_forks()
        self.renew_supervisors()

    def find_supervisor_kind(self, request: FaultAttemptRequest) -> object:
        """Return the function that prepares all guards of a request in its supervisor, or None.

        What it runs is not traced, and may run no line of a fault: that of a C++ source is built.
        """
        is_python = request.fault is not None and not is_cpp_path(request.fault.module)
        if request.trace or is_python or device.has_gpu():
            return None
        found = {
            None if preparation is None else preparation.function
            for preparation in map(self._read_preparation, request.guards)
        }
        return found.pop() if len(found) == 1 else None

    def _read_preparation(self, guard: GuardRequest) -> preparations.TestPreparation | None:
        item = self.items[guard.guard_number]
        return None if pytest_adapter.is_left_out(item) else preparations.read_preparation(item)

    def _prepare_guards(self, request: FaultAttemptRequest) -> None:
        """Prepare guards without the fault, once for all forks that run them.

        A fork builds what is changed when a guard first calls it, and nothing that no guard calls.
        """
        is_prepared = self.find_supervisor_kind(request) is not None
        if is_prepared:
            found = dict.fromkeys(map(self._read_preparation, request.guards))
            is_prepared = all(one is not None and one.try_run() for one in found)
            self.is_worn_out = not is_prepared
        self.items[0].config.stash[plugin.IS_PREPARED_AHEAD] = is_prepared

    def prepare_run(self, request: FaultAttemptRequest) -> None:
        self._prepare_guards(request)
        for guard in request.guards:
            with contextlib.suppress(UnfixError):  # the fork reports the error
                self.guards[guard.guard_number].build_changed_code()
        if (
            request.fault is not None
            and not is_cpp_path(request.fault.module)
            and (source := live_engine.engine.sources.read(request.fault.module))
        ):
            original_code.preload_module_text(source.text, source.path)
        if not live_engine.engine.is_idle:
            raise RuntimeError("the toggles of a guard could not be removed")

    def make_run(self, request: FaultAttemptRequest) -> SharedRun:
        seconds = sum(guard.seconds for guard in request.guards) + FORK_SLACK_SECONDS
        if request.fault is not None and is_cpp_path(request.fault.module):
            seconds += PREPARATION_SECONDS * len(request.guards)
        attempt = FaultAttemptRun(request, self.guards, self.folder, self.recorder)
        test_request = TestRequest(0, request.serial, seconds, request.memory_bytes)
        test_request.fork_limit *= request.example_factor * len(request.guards)
        verbs = {change.id: change.verb for change in attempt.changes}

        def run_attempt() -> SideResult:
            with self._record_programs(request):
                return attempt.run()

        return SharedRun(
            TestFiles(self.folder, test_request, verbs),
            run_attempt,
            attempt.take_back,
            attempt.repeat_without_fault,
            is_changed=request.fault is not None,
        )

    def needs_new_process(self, request: FaultAttemptRequest) -> bool:
        """A module of C++ that is loaded cannot be changed any more."""
        return request.fault is not None and is_cpp_path(request.fault.module)

    def repeat_doubtful_run(
        self,
        request: FaultAttemptRequest,
        side: SideResult,
        run_anew: Callable[[FaultAttemptRequest], SideResult],
    ) -> SideResult:
        if not is_failure_doubtful(self.folder, request, side):
            return side
        supervisor.delete_test_files(self.folder, request.serial)
        return run_anew(request)

    def _record_programs(
        self, request: FaultAttemptRequest
    ) -> contextlib.AbstractContextManager[None]:
        """Record the kernels that are loaded without a fault: a fault's are its own."""
        if request.fault is not None:
            return contextlib.nullcontext()
        return loaded_programs.record_loaded_programs(self._locate_programs(request))

    def learn_from_run(self, request: FaultAttemptRequest) -> None:
        loaded_programs.preload_programs(self._locate_programs(request))

    def _locate_programs(self, request: FaultAttemptRequest) -> Path:
        return self.folder / f"{request.serial}.programs"

    def make_reply(self, request: FaultAttemptRequest, side: SideResult) -> FaultAttemptReport:
        return read_attempt_report(self.folder, request, side)


if __name__ == "__main__":
    run_worker(MutationWorker, WorkerSettings)
