"""Looks under way: a worker, what it is asked, who is told what came of it."""

from __future__ import annotations

import contextlib
import select
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core import process_exit
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.mutate.messages import (
    FaultAttemptReport,
    FaultAttemptRequest,
    ImportModulesRequest,
    MutationWorkerMessage,
    MutationWorkerReady,
    MutationWorkerSettings,
)
from harness.runs.mutate.messages import GuardRequest as Guard
from harness.runs.mutate.request import MutationPlan
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import SideOutcome, SideResult
from harness.workers.messages import StartFailure
from harness.workers.worker_process import ENGINE_TEST_FILE, START_TIMEOUT, WorkerProcess


@dataclass
class PendingAttempt:
    """A look that is wanted, and who is told what came of it."""

    guards: list[tuple[str, float]]  # and how long each may take
    on_report: Callable[[FaultAttemptReport, list[str]], None]
    fault: MutationFault | None = None
    example_factor: int = 1
    trace: bool = False  # record which lines they run
    lost_attempts: int = 0  # that a worker or a keeper did not live to tell of

    @property
    def guard_names(self) -> list[str]:
        return [name for name, _ in self.guards]


class MutationWorkerProcess(WorkerProcess[MutationWorkerMessage]):
    """One process that imports a release and forks looks at faults."""

    module = "harness.runs.mutate.worker"
    message_type = MutationWorkerMessage


class MutationScheduler:
    """A worker that forks a look each, so many at a time; another one in its place if it ends."""

    def __init__(
        self, plan: MutationPlan, folder: Path, report_problem: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.retries: deque[PendingAttempt] = deque()  # before any that has not begun
        self.isolated: deque[PendingAttempt] = (
            deque()
        )  # when nothing else runs: one of them ended a worker
        self.deferred: deque[PendingAttempt] = deque()  # after all others
        self._report_problem = report_problem
        self._worker: MutationWorkerProcess | None = None
        self._guard_numbers: dict[str, int] = {}
        self._running: dict[int, PendingAttempt] = {}
        self._modules: list[str] = []
        self._last_serial = 0

    def start(self) -> MutationWorkerReady:
        """Have SGLang imported and the guards collected."""
        self.folder.mkdir(parents=True, exist_ok=True)
        asked = self.plan
        setting = MutationWorkerSettings(
            release=asked.target.requested_as or asked.target.name,
            pytest_arguments=[
                "--profile",
                asked.profile,
                *asked.pytest_arguments,
                f"--ignore-glob=*/{ENGINE_TEST_FILE}",
            ],
            folder=tempfile.mkdtemp(dir=self.folder),
            device=asked.target.device,
        )
        log = self.folder / "worker.log"
        worker = MutationWorkerProcess(
            asked.target.python, setting, asked.toggle_folders, asked.working_folder, log
        )
        self._worker = worker
        said = worker.wait_for_first_message(START_TIMEOUT)
        if said is None:
            raise NotReadyError(f"the worker did not begin: {worker.read_log_tail()}")
        assert not isinstance(said, FaultAttemptReport)
        if isinstance(said, StartFailure):
            error = UnfixError if said.is_usage_error else NotReadyError
            raise error(f"{said.problem}\n{worker.read_log_tail()}".strip())
        if not said.guards:
            raise UnfixError(f"pytest collects no guard of {' '.join(asked.pytest_arguments)}")
        self._guard_numbers = {guard: number for number, guard in enumerate(said.guards)}
        return said

    def import_modules(self, modules: list[str]) -> None:
        """Have modules imported before the next look, so that no fork has to."""
        self._modules += modules
        assert self._worker is not None
        self._worker.queue_request(ImportModulesRequest(modules))

    def run_attempts(self, attempts: Iterator[PendingAttempt]) -> None:
        """Until there are no more, and all have ended; each is taken when there is room for it."""
        while True:
            while len(self._running) < self.plan.jobs and not self.isolated:
                pending = self._take_next(attempts)
                if pending is None:
                    break
                self._send_attempt(pending)
            if self.isolated and not self._running:
                self._send_attempt(self.isolated.popleft())
            if not self._running:
                return
            self._receive_reports()

    def _take_next(self, attempts: Iterator[PendingAttempt]) -> PendingAttempt | None:
        if self.retries:
            return self.retries.popleft()
        pending = next(attempts, None)
        return self.deferred.popleft() if pending is None and self.deferred else pending

    def _send_attempt(self, pending: PendingAttempt) -> None:
        assert self._worker is not None
        self._last_serial += 1
        self._running[self._last_serial] = pending
        self._worker.queue_request(
            FaultAttemptRequest(
                serial=self._last_serial,
                guards=[Guard(self._guard_numbers[name], limit) for name, limit in pending.guards],
                memory_bytes=self.plan.memory_bytes,
                fault=pending.fault,
                example_factor=pending.example_factor,
                trace=pending.trace,
                keep_shrinking=self.plan.keep_shrinking,
            )
        )

    def _receive_reports(self) -> None:
        worker = self._worker
        assert worker is not None
        ready, _, _ = select.select([worker.read_end], worker.pipe.pending_write_ends, [], 1.0)
        with contextlib.suppress(BrokenPipeError):  # its other end tells
            worker.pipe.flush()
        if not ready:
            return
        said = worker.receive_messages()
        if said is None:
            self._replace_worker(worker)
        for each in said or ():
            assert isinstance(each, FaultAttemptReport)
            pending = self._running.pop(each.serial)
            if each.fork_side.outcome is SideOutcome.LOST and not pending.lost_attempts:
                pending.lost_attempts += 1  # its keeper was ended, perhaps by another look
                self.retries.append(pending)
            else:
                pending.on_report(each, pending.guard_names)

    def _replace_worker(self, worker: MutationWorkerProcess) -> None:
        """The worker ended: each that ran in it runs alone in another one, and is known then."""
        code, words = worker.end(), worker.read_log_tail()
        how = process_exit.describe_code(code)
        lost, self._running = list(self._running.values()), {}
        blamed = lost[0] if len(lost) == 1 and lost[0].lost_attempts else None
        if blamed is not None and blamed.fault is None:
            raise NotReadyError(f"two workers ended over {blamed.guard_names[0]} ({how}): {words}")
        self._report_problem(f"a worker ended ({how}) and another took its place: {words}")
        self.start()
        self.import_modules(self._modules)
        if blamed is not None:
            side = SideResult("", SideOutcome.LOST, headline=f"its worker ended: {how}")
            blamed.on_report(FaultAttemptReport(0, [], side), blamed.guard_names)
            return
        for pending in lost:
            pending.lost_attempts += 1
        self.isolated.extend(lost)

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
