"""The guards of one release in a run: what starts their workers, and how each ends.

`prove`, `bisect` and `adopt` run guards in the same workers (`guard_worker`). Each adds its items,
and receives a `SideResult` for each of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import KeysView, Sequence
from pathlib import Path
from typing import Any

from harness.core import process_exit
from harness.core.outcomes import Outcome
from harness.patching import attestation
from harness.store.prove.values import RepeatMode, SideResult
from harness.workers.engine import Assignment, ItemT, WorkerEnd, WorkPool
from harness.workers.messages import (
    GuardsCollected,
    GuardWorkerMessage,
    GuardWorkerSettings,
    StartFailure,
    TaskEnded,
    TaskKey,
    TestRequest,
)
from harness.workers.supervisor import make_exit_result
from harness.workers.worker_process import WorkerProcess


class GuardWorkerProcess(WorkerProcess[GuardWorkerMessage]):
    """A worker that runs guards."""

    module = "harness.workers.guard_worker"
    message_type = GuardWorkerMessage

    def __init__(
        self,
        python: Path,
        settings: GuardWorkerSettings,
        toggle_folders: Sequence[Path],
        working_folder: Path,
        log: Path,
    ) -> None:
        super().__init__(python, settings, list(toggle_folders), working_folder, log)
        self.task_numbers: dict[TaskKey, int] = {}  # this worker's numbers
        self.reported_reach = Counter[str]()  # by toggle, from the tests with a result

    def read_unreported_reach(self, toggle: str) -> int:
        """Return how often a toggle's code ran in the test that killed this worker."""
        attested = attestation.read_attestations(self.folder / "attestations")
        ours = (a.reach(toggle) for a in attested if a.pid == self.process.pid)
        return max(0, sum(ours) - self.reported_reach[toggle])


class GuardPool(WorkPool[ItemT, GuardWorkerMessage]):
    """The guards of a release; a kind of run says which, and what their results mean."""

    def __init__(
        self,
        name: str,
        python: Path,
        folder: Path,
        working_folder: Path,
        *,
        jobs: int,
        time_limit: float,
        memory_limit: int,
        toggle_folders: Sequence[Path] = (),
    ) -> None:
        super().__init__(name, jobs)
        self.folder = folder  # of its workers, whose logs lie beside it
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self._python = python
        self._working_folder = working_folder
        self._toggle_folders = toggle_folders
        self._worker_count = 0
        self.task_keys: KeysView[TaskKey] = {}.keys()  # as the first worker collected them

    # What a kind of run adds

    def make_settings(self, folder: str) -> GuardWorkerSettings:
        raise NotImplementedError

    def plan_items(self, collected: GuardsCollected) -> None:
        """Plan what runs, once the first worker has collected the guards."""

    def make_request(self, item: ItemT) -> tuple[TaskKey, TestRequest]:
        """Make the request of an item, without the numbers that the pool knows."""
        raise NotImplementedError

    def record_side(self, assignment: Assignment[ItemT], side: SideResult) -> None:
        raise NotImplementedError

    # Workers

    def start_worker(self) -> GuardWorkerProcess:
        self._worker_count += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.make_settings(tempfile.mkdtemp(dir=self.folder))
        log = self.folder.with_name(f"{self.folder.name}-{self._worker_count}.log")
        return GuardWorkerProcess(
            self._python, settings, self._toggle_folders, self._working_folder, log
        )

    def end_workers(self) -> None:
        super().end_workers()
        shutil.rmtree(self.folder, ignore_errors=True)

    def compute_limit(self, item: ItemT) -> float:
        return self.time_limit

    def send_item(self, assignment: Assignment[ItemT]) -> None:
        task, request = self.make_request(assignment.item)
        request.serial, request.number = assignment.serial, assignment.worker.task_numbers[task]
        request.seconds, request.memory = self.time_limit, self.memory_limit
        assignment.worker.send_request(request)

    def handle_message(self, worker: Any, message: GuardWorkerMessage) -> None:
        if isinstance(message, StartFailure):
            # For a wrong call, pytest's error line is enough.
            log = worker.read_log_tail()
            why = log.rpartition("ERROR: ")[2] if message.is_usage_error else log
            self.give_up(message.problem, why, message.is_usage_error)
        elif isinstance(message, GuardsCollected):
            worker.task_numbers = {task.key: task.number for task in message.tasks}
            # Only a worker that forks may have been ended by another item.
            self.shares_workers = self.repeats_lost_items = message.can_fork
            if self.accept_worker(worker):
                self.task_keys = worker.task_numbers.keys()
                self.plan_items(message)
            elif worker.task_numbers.keys() != self.task_keys:
                self.give_up("two workers do not collect the same guards")
        elif isinstance(message, TaskEnded):
            assignment = self.finish(message.serial)
            is_lost = message.side.outcome is Outcome.LOST or self.lacked_memory(message.side)
            if not (is_lost and self.repeat_alone(assignment, message.side.headline)):
                self.record_side(assignment, message.side)
            if message.is_device_lost:
                self.retire_worker(worker)

    def lacked_memory(self, side: SideResult) -> bool:
        """Return whether tests beside it may have filled the device, which limits no test."""
        return side.outcome is Outcome.OUT_OF_MEMORY and not self.shares_workers

    def record_loss(self, lost: Assignment[ItemT], end: WorkerEnd) -> None:
        self.record_side(lost, self.make_lost_side(lost, end))

    def make_lost_side(self, lost: Assignment[ItemT], end: WorkerEnd) -> SideResult:
        """Make the result of a test that ended its worker; one that ran there says how."""
        if self.shares_workers:
            headline = f"run alone, it ended its worker ({end.words}) again"
            return SideResult("", Outcome.LOST, headline=headline)
        limit = self.time_limit if end.is_overdue else None
        side = make_exit_result(process_exit.describe_exit(end.code, exceeded_seconds=limit))
        side.detail, side.way = end.log, RepeatMode.SEARCH
        return side
