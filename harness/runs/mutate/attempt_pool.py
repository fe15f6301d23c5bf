"""The attempts of a mutation run: guards in a fork, with or without a fault, and their worker."""

from __future__ import annotations

import secrets
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core import device
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome
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
from harness.store.prove.values import RepeatMode, SideResult
from harness.workers.engine import Assignment, Engine, WorkerEnd, WorkPool
from harness.workers.messages import StartFailure, WorkerSettings
from harness.workers.worker_process import ENGINE_TEST_FILE, WorkerProcess


@dataclass(eq=False)
class PendingAttempt:
    """Guards to run in one fork, with or without a fault, and the receiver of the report."""

    guards: list[tuple[str, float]]  # each with its time limit
    on_report: Callable[[FaultAttemptReport, list[str]], None]
    fault: MutationFault | None = None
    example_factor: int = 1
    repeated: SideResult | None = None  # the failure to repeat, with other random numbers
    trace: bool = False  # whether to record the lines that the guards run

    @property
    def guard_names(self) -> list[str]:
        return [name for name, _ in self.guards]


class MutationWorkerProcess(WorkerProcess[MutationWorkerMessage]):
    """A process that imports a release and forks the attempts."""

    module = "harness.runs.mutate.worker"
    message_type = MutationWorkerMessage


class AttemptPool(WorkPool[PendingAttempt, MutationWorkerMessage]):
    """The attempts on one release. What waits runs before any new attempt."""

    def __init__(
        self, plan: MutationPlan, folder: Path, report_problem: Callable[[str], None]
    ) -> None:
        super().__init__(plan.target.name, plan.jobs)
        self.plan = plan
        self.folder = folder
        self.deferred: deque[PendingAttempt] = deque()  # attempts that run after all new ones
        self._report_problem = report_problem
        self._engine = Engine([self], plan.jobs)
        self._new_attempts: Iterator[PendingAttempt] = iter(())
        self._ready: MutationWorkerReady | None = None
        self._guard_numbers: dict[str, int] = {}
        self._modules: list[str] = []

    def start(self) -> MutationWorkerReady:
        """Start a worker, which imports SGLang and collects the guards."""
        self.run_attempts(())
        assert self._ready is not None
        return self._ready

    def run_attempts(self, attempts: Iterable[PendingAttempt]) -> None:
        """Run all attempts; each is taken from the iterator when a job is free for it."""
        self._new_attempts, self.has_ended = iter(attempts), False
        self._engine.run()

    def import_modules(self, modules: list[str]) -> None:
        """Import modules in the worker before its next attempt, so that no fork has to."""
        self._modules = list(dict.fromkeys([*self._modules, *modules]))
        for worker in self.workers:
            worker.send_request(ImportModulesRequest(modules))

    # For the engine

    def start_worker(self) -> MutationWorkerProcess:
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
        return MutationWorkerProcess(
            plan.target.python, settings, plan.toggle_folders, plan.working_folder, log
        )

    def refill(self) -> None:
        attempt = next(self._new_attempts, None)
        if attempt is None and self.deferred:
            attempt = self.deferred.popleft()
        if attempt is not None:
            self.waiting.append(attempt)

    def send_item(self, assignment: Assignment[PendingAttempt]) -> None:
        attempt = assignment.item
        repeated = attempt.repeated
        assignment.worker.send_request(
            FaultAttemptRequest(
                serial=assignment.serial,
                guards=[GuardRequest(self._guard_numbers[name], s) for name, s in attempt.guards],
                memory_bytes=self.plan.memory_bytes,
                fault=attempt.fault,
                example_factor=attempt.example_factor,
                repeat_mode=repeated.way if repeated else RepeatMode.WHOLE,
                blob=repeated.blob if repeated else "",
                random_seed=secrets.randbits(32) if repeated else None,
                trace=attempt.trace,
                keep_shrinking=self.plan.keep_shrinking,
            )
        )

    def handle_message(self, worker: Any, message: MutationWorkerMessage) -> None:
        if isinstance(message, StartFailure):
            self.give_up(message.problem, worker.read_log_tail(), message.is_usage_error)
        elif isinstance(message, MutationWorkerReady):
            if not message.guards:
                words = " ".join(self.plan.pytest_arguments)
                raise UnfixError(f"pytest collects no guard of {words}")
            self._guard_numbers = {guard: number for number, guard in enumerate(message.guards)}
            self._ready = message
            if not self.accept_worker(worker) and self._modules:
                worker.send_request(ImportModulesRequest(self._modules))
        else:
            assignment = self.finish(message.serial)
            side = message.fork_side
            is_lost = side.outcome is Outcome.LOST
            if not (is_lost and self.repeat_alone(assignment, side.headline)):
                assignment.item.on_report(message, assignment.item.guard_names)

    def report_lost_worker(self, end: WorkerEnd, was_idle: bool) -> None:
        self._report_problem(f"a worker ended ({end.words}) and another took its place: {end.log}")

    def record_loss(self, lost: Assignment[PendingAttempt], end: WorkerEnd) -> None:
        names = lost.item.guard_names
        if lost.item.fault is None:
            raise NotReadyError(f"two workers ended over {names[0]} ({end.words}): {end.log}")
        side = SideResult("", Outcome.LOST, headline=f"its worker ended: {end.words}")
        lost.item.on_report(FaultAttemptReport(0, [], side), names)
