"""The attempts of a run, in progress or waiting, and the worker that forks them.

Every attempt that is handed in comes back as exactly one report. A worker may end in the middle of
several attempts, and only one of them is to blame. Example: attempts 7, 8 and 9 are in progress
when the worker ends. A new worker starts, and each of the three runs again with nothing beside it.
If the new worker ends as well while 8 runs, 8 is blamed: its report is that its worker ended.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core import device, process_exit
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.mutate.messages import (
    FaultAttemptReport,
    FaultAttemptRequest,
    GuardRequest,
    ImportModulesRequest,
    MutationWorkerMessage,
    MutationWorkerReady,
)
from harness.runs.mutate.request import MutationPlan
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import RepeatMode, SideOutcome, SideResult
from harness.workers.messages import StartFailure, WorkerSettings
from harness.workers.worker_process import ENGINE_TEST_FILE, START_TIMEOUT, WorkerProcess


@dataclass
class PendingAttempt:
    """Guards to run in one fork, with or without a fault, and the receiver of the report."""

    guards: list[tuple[str, float]]  # each with its time limit
    on_report: Callable[[FaultAttemptReport, list[str]], None]
    fault: MutationFault | None = None
    example_factor: int = 1
    repeated: SideResult | None = None  # the failure to repeat, with other random numbers
    trace: bool = False  # whether to record the lines that the guards run
    lost_attempts: int = 0  # number of lost workers and supervisors

    @property
    def guard_names(self) -> list[str]:
        return [name for name, _ in self.guards]


class MutationWorkerProcess(WorkerProcess[MutationWorkerMessage]):
    """A process that imports a release and forks the attempts."""

    module = "harness.runs.mutate.worker"
    message_type = MutationWorkerMessage


class MutationScheduler:
    """A scheduler that runs `plan.jobs` attempts at a time, and replaces a worker that ends."""

    def __init__(
        self, plan: MutationPlan, folder: Path, report_problem: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.retries: deque[PendingAttempt] = deque()  # attempts that run before any new one
        self.isolated: deque[PendingAttempt] = deque()  # alone: one of them ended a worker
        self.deferred: deque[PendingAttempt] = deque()  # attempts that run after all others
        self._report_problem = report_problem
        self._worker: MutationWorkerProcess | None = None
        self._guard_numbers: dict[str, int] = {}
        self._running: dict[int, PendingAttempt] = {}
        self._modules: list[str] = []
        self._last_serial = 0

    def start(self) -> MutationWorkerReady:
        """Start a worker, which imports SGLang and collects the guards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = self.plan
        settings = WorkerSettings(
            release=plan.target.requested_as or plan.target.name,
            pytest_arguments=[
                *("--profile", plan.profile),
                *plan.pytest_arguments,
                f"--ignore-glob=*/{ENGINE_TEST_FILE}",
            ],
            folder=tempfile.mkdtemp(dir=self.folder),
            device=plan.target.device,
            shares_processes=device.shares_processes(plan.target.device),
            jobs=plan.jobs,
        )
        log = self.folder / "worker.log"
        worker = MutationWorkerProcess(
            plan.target.python, settings, plan.toggle_folders, plan.working_folder, log
        )
        self._worker = worker
        message = worker.wait_for_first_message(START_TIMEOUT)
        if message is None:
            raise NotReadyError(f"the worker did not start: {worker.read_log_tail()}")
        assert not isinstance(message, FaultAttemptReport)
        if isinstance(message, StartFailure):
            error = UnfixError if message.is_usage_error else NotReadyError
            raise error(f"{message.problem}\n{worker.read_log_tail()}".strip())
        if not message.guards:
            raise UnfixError(f"pytest collects no guard of {' '.join(plan.pytest_arguments)}")
        self._guard_numbers = {guard: number for number, guard in enumerate(message.guards)}
        return message

    def import_modules(self, modules: list[str]) -> None:
        """Import modules in the worker before its next attempt, so that no fork has to."""
        self._modules = list(dict.fromkeys([*self._modules, *modules]))
        assert self._worker is not None
        self._worker.queue_request(ImportModulesRequest(modules))

    def run_attempts(self, attempts: Iterator[PendingAttempt]) -> None:
        """Run all attempts; each is taken from the iterator when a job is free for it."""
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
        guards = [GuardRequest(self._guard_numbers[name], limit) for name, limit in pending.guards]
        self._worker.queue_request(
            FaultAttemptRequest(
                serial=self._last_serial,
                guards=guards,
                memory_bytes=self.plan.memory_bytes,
                fault=pending.fault,
                example_factor=pending.example_factor,
                repeat_mode=pending.repeated.way if pending.repeated else RepeatMode.WHOLE,
                blob=pending.repeated.blob if pending.repeated else "",
                random_seed=secrets.randbits(32) if pending.repeated else None,
                trace=pending.trace,
                keep_shrinking=self.plan.keep_shrinking,
            )
        )

    def _receive_reports(self) -> None:
        worker = self._worker
        assert worker is not None
        ready, _, _ = select.select([worker.read_end], worker.pipe.pending_write_ends, [], 1.0)
        with contextlib.suppress(BrokenPipeError):  # the worker has ended
            worker.pipe.flush()
        if not ready:
            return
        reports = worker.receive_messages()
        if reports is None:
            self._replace_worker(worker)
        for report in reports or ():
            assert isinstance(report, FaultAttemptReport)
            pending = self._running.pop(report.serial)
            if report.fork_side.outcome is SideOutcome.LOST and not pending.lost_attempts:
                pending.lost_attempts += 1  # another attempt may have ended its supervisor
                self.retries.append(pending)
            else:
                pending.on_report(report, pending.guard_names)

    def _replace_worker(self, worker: MutationWorkerProcess) -> None:
        """Start another worker; blame an attempt that ran alone when its worker ended."""
        code, log = worker.end(), worker.read_log_tail()
        how = process_exit.describe_code(code)
        lost, self._running = list(self._running.values()), {}
        blamed = lost[0] if len(lost) == 1 and lost[0].lost_attempts else None
        if blamed is not None and blamed.fault is None:
            raise NotReadyError(f"two workers ended over {blamed.guard_names[0]} ({how}): {log}")
        self._report_problem(f"a worker ended ({how}) and another took its place: {log}")
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
