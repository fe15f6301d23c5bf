"""A simulated fleet: an hour of work of many workers in seconds, without running anything.

It is an executor like the others, to try plans, the store and the reports at a size for which no
test has machines. Time is simulated; a seed decides failures, stragglers and lost workers.
"""

from __future__ import annotations

import heapq
import random

import msgspec

from harness.matrices.schema import MachineNeeds
from harness.runs.matrix.cell_attempt import CellTask, get_timestamp
from harness.runs.matrix.cell_scheduler import FinishedAttempt
from harness.store.matrix.values import AttemptOutcome, CellAttempt

TEXT_BY_FAILURE = {
    AttemptOutcome.RED: "exit code 1",
    AttemptOutcome.ERROR: "exit code 2",
    AttemptOutcome.CRASH: "SIGSEGV",
    AttemptOutcome.HANG: "ran past its limit",
}


class FleetRates(msgspec.Struct, frozen=True):
    """How often an attempt fails, loses its worker, or takes ten times as long."""

    failure_rate: float = 0.03
    loss_rate: float = 0.01  # a dead worker, which another one replaces
    straggler_rate: float = 0.02  # ten times the duration


class SimulatedFleet:
    """A number of workers, each with one cell at a time."""

    def __init__(self, workers: int, seed: int = 0, rates: FleetRates | None = None) -> None:
        self.workers = workers
        self.rates = rates or FleetRates()
        self.generator = random.Random(seed)
        self.clock = 0.0
        self.running: list[tuple[float, int, FinishedAttempt]] = []  # a heap by end time
        self.started_attempts: list[tuple[str, int]] = []  # all attempts, in order

    def describe_shortage(self, needs: MachineNeeds) -> str:
        return ""

    def has_room(self, needs: MachineNeeds) -> bool:
        return len(self.running) < self.workers

    def start(self, task: CellTask, needs: MachineNeeds) -> None:
        self.started_attempts.append((task.cell_id, task.attempt_number))
        seconds = self.generator.lognormvariate(4, 0.5)
        if self.generator.random() < self.rates.straggler_rate:
            seconds *= 10
        outcome, how = self._draw_outcome()
        output = f"{how} in {task.cell_id}\n" * 20 if outcome.is_failure else "ok\n"
        attempt = CellAttempt(
            *(task.attempt_number, outcome, how, get_timestamp(), seconds, seconds * task.gpus),
            f"worker-{len(self.started_attempts) % self.workers}",
            output,
        )
        ended = FinishedAttempt(task.cell_id, attempt)
        heapq.heappush(self.running, (self.clock + seconds, len(self.started_attempts), ended))

    def _draw_outcome(self) -> tuple[AttemptOutcome, str]:
        drawn = self.generator.random()
        if drawn < self.rates.loss_rate:
            return AttemptOutcome.LOST, "the node died"
        if drawn < self.rates.loss_rate + self.rates.failure_rate:
            outcome = self.generator.choice(list(TEXT_BY_FAILURE))
            return outcome, TEXT_BY_FAILURE[outcome]
        return AttemptOutcome.GREEN, "exit code 0"

    def wait(self, seconds: float) -> list[FinishedAttempt]:
        """Return the attempts that end within `seconds` of simulated time after the next end."""
        if not self.running:
            return []
        until = self.running[0][0] + seconds
        ended = []
        while self.running and self.running[0][0] <= until:
            self.clock, _, one = heapq.heappop(self.running)
            ended.append(one)
        return ended

    def stop(self) -> None:
        self.running.clear()

    def close(self) -> None:
        self.stop()
