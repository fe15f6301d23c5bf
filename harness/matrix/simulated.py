"""A fleet that is only simulated: many workers, an hour of work in seconds, nothing really run.

An executor as the others are, to try plans, the store and the reports at a size that no test has
machines for. Time is made up; failures, stragglers and deaths follow a seed.
"""

from __future__ import annotations

import heapq
import random

import msgspec

from harness.matrix.attempting import Task, now
from harness.matrix.running import Ended
from harness.matrix.values import Needs
from harness.store.matrix.values import Attempt, Outcome

FAILURES = {
    Outcome.RED: "exit code 1",
    Outcome.ERROR: "exit code 2",
    Outcome.CRASH: "SIGSEGV",
    Outcome.HANG: "ran past its limit",
}


class Odds(msgspec.Struct, frozen=True):
    """How often what happens to an attempt."""

    failing: float = 0.03
    lost: float = 0.01  # its worker dies, and another one takes its place
    straggling: float = 0.02  # it takes ten times as long


class Fleet:
    """So many workers, each with one cell at a time."""

    def __init__(self, workers: int, seed: int = 0, odds: Odds | None = None) -> None:
        self.workers = workers
        self.odds = odds or Odds()
        self.random = random.Random(seed)
        self.clock = 0.0
        self.going: list[tuple[float, int, Ended]] = []  # a heap by when they end
        self.started: list[tuple[str, int]] = []  # each attempt that was ever asked for

    def lacking(self, needs: Needs) -> str:
        return ""

    def room(self, needs: Needs) -> bool:
        return len(self.going) < self.workers

    def start(self, task: Task, needs: Needs) -> None:
        self.started.append((task.cell, task.number))
        seconds = self.random.lognormvariate(4, 0.5)
        if self.random.random() < self.odds.straggling:
            seconds *= 10
        outcome, how = self._outcome()
        output = f"{how} in {task.cell}\n" * 20 if outcome.failed else "ok\n"
        attempt = Attempt(
            *(task.number, outcome, how, now(), seconds, seconds * task.gpus),
            f"worker-{len(self.started) % self.workers}",
            output,
        )
        ended = Ended(task.cell, attempt)
        heapq.heappush(self.going, (self.clock + seconds, len(self.started), ended))

    def _outcome(self) -> tuple[Outcome, str]:
        drawn = self.random.random()
        if drawn < self.odds.lost:
            return Outcome.LOST, "the node died"
        if drawn < self.odds.lost + self.odds.failing:
            outcome = self.random.choice(list(FAILURES))
            return outcome, FAILURES[outcome]
        return Outcome.GREEN, "exit code 0"

    def wait(self, seconds: float) -> list[Ended]:
        """Whatever ends within so much made-up time of the next end."""
        if not self.going:
            return []
        until = self.going[0][0] + seconds
        ended = []
        while self.going and self.going[0][0] <= until:
            self.clock, _, one = heapq.heappop(self.going)
            ended.append(one)
        return ended

    def stop(self) -> None:
        self.going.clear()

    def close(self) -> None:
        self.stop()
