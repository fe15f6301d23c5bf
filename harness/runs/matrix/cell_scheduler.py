"""The order of a run: what waits, what goes on somewhere, what is tried again, what is kept.

Knows nothing of where a cell runs; whoever runs it is an `Executor`. Knows nothing of the store;
what ended is handed to `keep` within a moment, many at a time: a write to the disk for each would
be slower than a large fleet. A failure is kept before its cell is run again: were it forgotten by a
driver that dies in between, a flaky cell would come out green.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from harness.runs.matrix import release_setup
from harness.runs.matrix.cell_attempt import CellTask, get_timestamp
from harness.runs.matrix.cell_plan import MachineNeeds, MatrixCell
from harness.store.matrix.values import AttemptOutcome, CellAttempt

WAIT_SECONDS = 0.5  # seconds to wait for an end before looking around
FLUSH_SECONDS = 0.25  # seconds after which what ended is kept at the latest
MAX_LOSSES = 3  # a cell that takes down so many machines is not given a further one


class FinishedAttempt(msgspec.Struct, frozen=True):
    """One attempt that is over."""

    cell_id: str
    attempt: CellAttempt


class CellExecutor(Protocol):
    """Whoever runs cells, many at a time."""

    def describe_shortage(self, needs: MachineNeeds) -> str:
        """What no machine has of these needs, in words; '' if there is one that has all."""
        ...

    def has_room(self, needs: MachineNeeds) -> bool:
        """Whether one more with these needs may be started now."""
        ...

    def start(self, task: CellTask, needs: MachineNeeds) -> None: ...

    def wait(self, seconds: float) -> list[FinishedAttempt]:
        """All that ended, waiting at most so long for the first."""
        ...

    def stop(self) -> None:
        """End all that runs; nothing more is told of it."""
        ...

    def close(self) -> None: ...


class RetryRules(msgspec.Struct, frozen=True):
    """How a run goes on after a cell that is not green."""

    retries: int = 0  # of a cell whose command failed
    fail_fast: bool = False


class RunLocation(msgspec.Struct, frozen=True):
    """Which run it is, and where its logs go."""

    run_id: str
    log_folder: Path
    started_in: Path
    install_command: list[str] = []  # words that install a release, if not unfix's own

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
        """`before` has the attempts of a run that goes on, for the cells that are not done."""
        self.cells = {cell.identity: cell for cell in cells}
        self.executor = executor
        self.location = location
        self.rules = rules
        self.save_attempts = save_attempts
        self.attempts = {name: list((earlier_attempts or {}).get(name, [])) for name in self.cells}
        self.earlier_attempt_counts = {name: len(tried) for name, tried in self.attempts.items()}
        self.waiting: dict[bytes, deque[MatrixCell]] = {}
        self.running: set[str] = set()
        self.shortages: dict[bytes, str] = {}  # what no machine has, by needs
        self.unsaved: list[tuple[str, CellAttempt]] = []
        self.saved_at = time.monotonic()

    def run(self) -> bool:
        """Run them all; False if it ended at the first that is not green, as asked for."""
        for cell in sort_longest_first(self.cells.values()):
            self.waiting.setdefault(_encode_shape(cell.needs), deque()).append(cell)
        try:
            return self._run_until_done()
        finally:
            if self.running:
                self.executor.stop()
            self._flush()

    def _run_until_done(self) -> bool:
        while self.running or any(self.waiting.values()):
            fine = self._save_finished(self._fail_unplaceable())
            if fine or not self.rules.fail_fast:
                self._start_waiting()
                patience = FLUSH_SECONDS if self.unsaved else WAIT_SECONDS
                ended = self.executor.wait(patience) if self.running else []
                fine = self._save_finished([self._finish_attempt(one) for one in ended]) and fine
            if not fine and self.rules.fail_fast:
                return False
        return True

    def _fail_unplaceable(self) -> list[tuple[str, CellAttempt]]:
        """Those that wait for what no machine has, said at once."""
        ended = []
        for shape, queue in self.waiting.items():
            if not queue:
                continue
            why = self.executor.describe_shortage(queue[0].needs)
            if why:
                self.shortages[shape] = why
                ended += [
                    (cell.identity, self._make_not_ready_attempt(cell, why)) for cell in queue
                ]
                queue.clear()
        return ended

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
        """Whether it is the last attempt; if not, its cell waits again, before all others."""
        self.running.discard(finished.cell_id)
        cell = self.cells[finished.cell_id]
        attempt = finished.attempt
        again = self._can_retry(cell, attempt)
        if again:
            self.waiting[_encode_shape(cell.needs)].appendleft(cell)
        return finished.cell_id, msgspec.structs.replace(attempt, last=not again)

    def _can_retry(self, cell: MatrixCell, attempt: CellAttempt) -> bool:
        tried = [*self.attempts[cell.identity], attempt]
        if attempt.outcome is AttemptOutcome.LOST:
            mine = tried[self.earlier_attempt_counts[cell.identity] :]
            return sum(one.outcome is AttemptOutcome.LOST for one in mine) < MAX_LOSSES
        failed = sum(one.outcome.is_failure for one in tried)
        return attempt.outcome.is_failure and failed <= self.rules.retries

    def _save_finished(self, finished: list[tuple[str, CellAttempt]]) -> bool:
        """Have them kept; whether none of them ends a cell that is not green."""
        self.unsaved += finished
        for cell, attempt in finished:
            self.attempts[cell].append(attempt)
        late = time.monotonic() > self.saved_at + FLUSH_SECONDS
        if late or any(not one.last for _, one in finished):
            self._flush()
        return not any(one.last and one.outcome is not AttemptOutcome.GREEN for _, one in finished)

    def _flush(self) -> None:
        ended, self.unsaved = self.unsaved, []
        if ended:
            self.save_attempts(ended)
        self.saved_at = time.monotonic()


def sort_longest_first(cells: Iterable[MatrixCell]) -> list[MatrixCell]:
    """The longest that is known first; one that nobody has run may be long as well."""
    return sorted(cells, key=lambda cell: -(float("inf") if cell.seconds is None else cell.seconds))


def _encode_shape(needs: MachineNeeds) -> bytes:
    return msgspec.json.encode(needs, order="sorted")
