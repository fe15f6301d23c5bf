"""The cells of a run for the engine: the longest first, retries, and saving of attempts.

A `CellExecutor` runs the cells, here or on a cluster. Finished attempts are saved in batches,
within a quarter of a second: a disk write each would be slower than a large fleet. One invariant:
a failure is saved before its cell runs again. If the driver died in between and the failure were
lost, a flaky cell would be reported as green.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from harness.core.outcomes import Outcome
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import release_setup
from harness.runs.matrix.cell_attempt import CellTask, get_timestamp
from harness.runs.matrix.cell_plan import MatrixCell
from harness.store.matrix.values import FAILURES, CellAttempt
from harness.workers.engine import Assignment, Engine, Worker, WorkPool

FLUSH_SECONDS = 0.25  # the longest time until a finished attempt is saved
MAX_LOSSES = 3  # machines that a cell may take down before it is given up


class FinishedAttempt(msgspec.Struct, frozen=True):
    """One attempt that is over."""

    cell_id: str
    attempt: CellAttempt


class CellExecutor(Worker[FinishedAttempt], ABC):
    """Runs cells, many at a time; for the engine it is one worker, which has always started."""

    def __init__(self) -> None:
        self._wake_up = os.eventfd(0, os.EFD_NONBLOCK)

    @abstractmethod
    def describe_shortage(self, needs: MachineNeeds) -> str:
        """Describe the needs that no machine meets; '' if one machine meets all."""

    @abstractmethod
    def has_room(self, needs: MachineNeeds) -> bool:
        """Return whether one more cell with these needs may start now."""

    @abstractmethod
    def start(self, task: CellTask, needs: MachineNeeds) -> None: ...

    @abstractmethod
    def collect_finished(self) -> list[FinishedAttempt]:
        """Return all attempts that have finished."""

    def give_up_unplaceable(self) -> list[FinishedAttempt]:
        """End the attempts that wait for a machine which is gone; called now and then."""
        return []

    @abstractmethod
    def stop(self) -> None:
        """End all running attempts, without a report."""

    def close(self) -> None:
        os.close(self._wake_up)

    # As a worker of the engine

    def report_finished(self) -> None:
        """Wake the engine up: an attempt has finished. Any thread may call it."""
        with contextlib.suppress(OSError):  # closed after a stop
            os.eventfd_write(self._wake_up, 1)

    def fileno(self) -> int:
        return self._wake_up

    def receive_messages(self) -> list[FinishedAttempt]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_up)
        return self.collect_finished()


class RetryRules(msgspec.Struct, frozen=True):
    """The rules for a run after a cell that is not green."""

    retries: int = 0  # retries of a cell whose command failed
    fail_fast: bool = False


class RunLocation(msgspec.Struct, frozen=True):
    """The identity of a run, and the folders of its logs."""

    run_id: str
    log_folder: Path
    started_in: Path
    install_command: list[str] = []  # installs a release; default: unfix itself

    def locate_cell_folder(self, cell_id: str) -> Path:
        return self.log_folder / cell_id


SaveAttempts = Callable[[list[tuple[str, CellAttempt]]], None]


class CellScheduler(WorkPool[MatrixCell, FinishedAttempt]):
    """One run of some cells."""

    def __init__(
        self,
        cells: Iterable[MatrixCell],
        executor: CellExecutor,
        location: RunLocation,
        rules: RetryRules,
        save_attempts: SaveAttempts,
        earlier_attempts: dict[str, list[CellAttempt]] | None = None,
    ) -> None:
        """Schedule cells; `earlier_attempts` has a resumed run's attempts at unfinished cells."""
        super().__init__("the matrix", sys.maxsize)
        self.is_collected = True
        self.workers.append(executor)
        self.cells = {cell.identity: cell for cell in cells}
        self.executor = executor
        self.location = location
        self.rules = rules
        self.save_attempts = save_attempts
        earlier = earlier_attempts or {}
        self.attempts = {name: list(earlier.get(name, [])) for name in self.cells}
        self.earlier_attempt_counts = {name: len(earlier.get(name, [])) for name in self.cells}
        self.queues: dict[bytes, deque[MatrixCell]] = {}  # by needs
        self.serials: dict[str, int] = {}  # of the running cells
        self.shortages: dict[bytes, str] = {}  # by needs: the resources that no machine has
        self.unsaved: list[tuple[str, CellAttempt]] = []
        self.saved_at = time.monotonic()

    def run(self) -> bool:
        """Run all cells; False if --fail-fast ended the run at a cell that is not green."""
        for cell in sort_longest_first(self.cells.values()):
            self.queues.setdefault(encode_needs(cell.needs), deque()).append(cell)
        try:
            Engine([self], self.jobs).run()
            return not self.is_given_up
        finally:
            if self.running:
                self.executor.stop()
            self._flush()

    # For the engine

    @property
    def is_done(self) -> bool:
        return super().is_done and (self.is_given_up or not any(self.queues.values()))

    def count_workers(self) -> int:
        return 1

    def refill(self) -> None:
        """Take the next cell that some machine has room for."""
        self._save_finished(self._fail_unplaceable())
        for queue in self.queues.values():
            if queue and not self.is_given_up and self.executor.has_room(queue[0].needs):
                self.waiting.append(queue.popleft())
                return

    def send_item(self, assignment: Assignment[MatrixCell]) -> None:
        cell = assignment.item
        self.serials[cell.identity] = assignment.serial
        self.executor.start(self._make_task(cell), cell.needs)

    def handle_message(self, worker: CellExecutor, message: FinishedAttempt) -> None:
        self.finish(self.serials.pop(message.cell_id))
        self._save_finished([self._finish_attempt(message)])

    def check_limits(self, now: float) -> None:
        # What is finished is collected again: an executor may have missed to wake the engine up.
        for finished in [*self.executor.collect_finished(), *self.executor.give_up_unplaceable()]:
            self.handle_message(self.executor, finished)
        if self.unsaved and now > self.saved_at + FLUSH_SECONDS:
            self._flush()

    def _fail_unplaceable(self) -> list[tuple[str, CellAttempt]]:
        """End the waiting cells whose needs no machine meets."""
        finished = []
        for shape, queue in self.queues.items():
            if not queue:
                continue
            shortage = self.executor.describe_shortage(queue[0].needs)
            if shortage:
                self.shortages[shape] = shortage
                finished += [
                    (cell.identity, self._make_not_ready_attempt(cell, shortage)) for cell in queue
                ]
                queue.clear()
        return finished

    def _make_not_ready_attempt(self, cell: MatrixCell, reason: str) -> CellAttempt:
        number = len(self.attempts[cell.identity]) + 1
        return CellAttempt(number, Outcome.NOT_READY, reason, get_timestamp(), last=True)

    def _make_task(self, cell: MatrixCell) -> CellTask:
        return CellTask(
            run_id=self.location.run_id,
            cell_id=cell.identity,
            attempt_number=len(self.attempts[cell.identity]) + 1,
            command=cell.command,
            environment=cell.environment,
            time_limit=cell.limit,
            log_folder=str(self.location.locate_cell_folder(cell.identity)),
            started_in=str(self.location.started_in),
            release=release_setup.find_needed_release(cell.values, cell.command),
            cpus=cell.needs.cpus,
            gpus=cell.needs.gpus,
            install_command=self.location.install_command,
        )

    def _finish_attempt(self, finished: FinishedAttempt) -> tuple[str, CellAttempt]:
        """Mark whether the attempt is the last; a cell to retry waits again, before all others."""
        cell = self.cells[finished.cell_id]
        retry = self._can_retry(cell, finished.attempt)
        if retry:
            self.queues[encode_needs(cell.needs)].appendleft(cell)
        return finished.cell_id, msgspec.structs.replace(finished.attempt, last=not retry)

    def _can_retry(self, cell: MatrixCell, attempt: CellAttempt) -> bool:
        attempts = [*self.attempts[cell.identity], attempt]
        if attempt.outcome is Outcome.LOST:
            own = attempts[self.earlier_attempt_counts[cell.identity] :]
            return sum(one.outcome is Outcome.LOST for one in own) < MAX_LOSSES
        failed = sum(one.outcome in FAILURES for one in attempts)
        return attempt.outcome in FAILURES and failed <= self.rules.retries

    def _save_finished(self, finished: list[tuple[str, CellAttempt]]) -> None:
        """Save attempts, now or with the next batch; with --fail-fast a bad cell is the last."""
        self.unsaved += finished
        for cell, attempt in finished:
            self.attempts[cell].append(attempt)
        late = time.monotonic() > self.saved_at + FLUSH_SECONDS
        if late or any(not one.last for _, one in finished):
            self._flush()
        if any(one.last and one.outcome is not Outcome.PASSED for _, one in finished):
            self.is_given_up = self.is_given_up or self.rules.fail_fast

    def _flush(self) -> None:
        attempts, self.unsaved = self.unsaved, []
        if attempts:
            self.save_attempts(attempts)
        self.saved_at = time.monotonic()


def sort_longest_first(cells: Iterable[MatrixCell]) -> list[MatrixCell]:
    """Sort cells without a known time first, since they may be long, then the longest."""
    return sorted(cells, key=lambda cell: -(float("inf") if cell.seconds is None else cell.seconds))


def encode_needs(needs: MachineNeeds) -> bytes:
    return msgspec.json.encode(needs, order="sorted")
