"""Schedules the cells of a run: the longest first, retries, and saving of attempts.

A `CellExecutor` runs the cells, here or on a cluster. Finished attempts are saved in batches,
within a quarter of a second: a disk write each would be slower than a large fleet. One invariant:
a failure is saved before its cell runs again. If the driver died in between and the failure were
lost, a flaky cell would be reported as green.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import release_setup
from harness.runs.matrix.cell_attempt import CellTask, get_timestamp
from harness.runs.matrix.cell_plan import MatrixCell
from harness.store.matrix.values import AttemptOutcome, CellAttempt

WAIT_SECONDS = 0.5  # the longest wait for a finished attempt
FLUSH_SECONDS = 0.25  # the longest time until a finished attempt is saved
MAX_LOSSES = 3  # machines that a cell may take down before it is given up


class FinishedAttempt(msgspec.Struct, frozen=True):
    """One attempt that is over."""

    cell_id: str
    attempt: CellAttempt


class CellExecutor(Protocol):
    """Runs cells, many at a time."""

    def describe_shortage(self, needs: MachineNeeds) -> str:
        """Describe the needs that no machine meets; '' if one machine meets all."""
        ...

    def has_room(self, needs: MachineNeeds) -> bool:
        """Return whether one more cell with these needs may start now."""
        ...

    def start(self, task: CellTask, needs: MachineNeeds) -> None: ...

    def wait(self, seconds: float) -> list[FinishedAttempt]:
        """Return all finished attempts; wait at most so long for the first."""
        ...

    def stop(self) -> None:
        """End all running attempts, without a report."""
        ...

    def close(self) -> None: ...


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


class CellScheduler:
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
        self.cells = {cell.identity: cell for cell in cells}
        self.executor = executor
        self.location = location
        self.rules = rules
        self.save_attempts = save_attempts
        earlier = earlier_attempts or {}
        self.attempts = {name: list(earlier.get(name, [])) for name in self.cells}
        self.earlier_attempt_counts = {name: len(earlier.get(name, [])) for name in self.cells}
        self.waiting: dict[bytes, deque[MatrixCell]] = {}
        self.running: set[str] = set()
        self.shortages: dict[bytes, str] = {}  # by needs: the resources that no machine has
        self.unsaved: list[tuple[str, CellAttempt]] = []
        self.saved_at = time.monotonic()

    def run(self) -> bool:
        """Run all cells; False if --fail-fast ended the run at a cell that is not green."""
        for cell in sort_longest_first(self.cells.values()):
            self.waiting.setdefault(encode_needs(cell.needs), deque()).append(cell)
        try:
            return self._run_until_done()
        finally:
            if self.running:
                self.executor.stop()
            self._flush()

    def _run_until_done(self) -> bool:
        while self.running or any(self.waiting.values()):
            green = self._save_finished(self._fail_unplaceable())
            if green or not self.rules.fail_fast:
                self._start_waiting()
                seconds = FLUSH_SECONDS if self.unsaved else WAIT_SECONDS
                finished = self.executor.wait(seconds) if self.running else []
                attempts = [self._finish_attempt(one) for one in finished]
                green = self._save_finished(attempts) and green
            if not green and self.rules.fail_fast:
                return False
        return True

    def _fail_unplaceable(self) -> list[tuple[str, CellAttempt]]:
        """End the waiting cells whose needs no machine meets."""
        finished = []
        for shape, queue in self.waiting.items():
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
        return CellAttempt(number, AttemptOutcome.NOT_READY, reason, get_timestamp(), last=True)

    def _start_waiting(self) -> None:
        for queue in self.waiting.values():
            while queue and self.executor.has_room(queue[0].needs):
                cell = queue.popleft()
                self.executor.start(self._make_task(cell), cell.needs)
                self.running.add(cell.identity)

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
        self.running.discard(finished.cell_id)
        cell = self.cells[finished.cell_id]
        retry = self._can_retry(cell, finished.attempt)
        if retry:
            self.waiting[encode_needs(cell.needs)].appendleft(cell)
        return finished.cell_id, msgspec.structs.replace(finished.attempt, last=not retry)

    def _can_retry(self, cell: MatrixCell, attempt: CellAttempt) -> bool:
        attempts = [*self.attempts[cell.identity], attempt]
        if attempt.outcome is AttemptOutcome.LOST:
            own = attempts[self.earlier_attempt_counts[cell.identity] :]
            return sum(one.outcome is AttemptOutcome.LOST for one in own) < MAX_LOSSES
        failed = sum(one.outcome.is_failure for one in attempts)
        return attempt.outcome.is_failure and failed <= self.rules.retries

    def _save_finished(self, finished: list[tuple[str, CellAttempt]]) -> bool:
        """Save attempts, now or with the next batch; False if one ends a cell that is not green."""
        self.unsaved += finished
        for cell, attempt in finished:
            self.attempts[cell].append(attempt)
        late = time.monotonic() > self.saved_at + FLUSH_SECONDS
        if late or any(not one.last for _, one in finished):
            self._flush()
        return not any(one.last and one.outcome is not AttemptOutcome.GREEN for _, one in finished)

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
