"""One release of a run: its workers, and what they may be given."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from harness.prove.messages import Key, Setting
from harness.prove.plan import Left
from harness.prove.workers import GuardWorker


class Lane:
    """A release's workers and its part of the plan.

    A worker that forks runs any number at a time, so there is one. Workers on a GPU run one each; a
    spare one imports meanwhile, for when a test costs a worker.
    """

    def __init__(self, left: Left, folder: Path) -> None:
        self.left = left
        self.folder = folder / left.target.name
        self.workers: list[GuardWorker] = []
        self._leaving: list[GuardWorker] = []  # they are told to end, and nobody waits for it
        self.forks = True  # until a worker says that it cannot
        self.started: float | None = None
        self.ended = False
        self._given_up = False
        self._made = 0

    @property
    def in_flight(self) -> int:
        return sum(len(worker.running) for worker in self.workers)

    @property
    def over(self) -> bool:
        """Nothing is left to run, or nobody to run it."""
        done = self.left.known and not self.left.waiting and not self.in_flight
        return self._given_up or done

    @property
    def finishing(self) -> bool:
        """Nothing waits here but what is to run alone."""
        return self.left.known and (not self.left.waiting or self.waits_alone)

    def start_workers(self) -> None:
        """As many as have something to do, and no more."""
        asked = self.left.asked
        if self.started is None:
            self.started = time.monotonic()
        wanted = 1 if self.forks else asked.jobs
        if not self.forks and self.left.known:
            waiting = len(self.left.waiting)
            if self.finishing:
                waiting = min(1, waiting)
            wanted = min(asked.jobs, waiting + self.in_flight) + bool(waiting)
        idle = [worker for worker in self.workers if worker.ready and not worker.running]
        for worker in idle[: max(0, len(self.workers) - wanted - 1)]:
            worker.line.hang_up()
            self.workers.remove(worker)
            self._leaving.append(worker)
        while len(self.workers) < wanted and not self.over:
            self._made += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            setting = Setting(
                release=self.left.target.asked or self.left.target.name,
                words=asked.pytest_words(),
                sides=asked.sides,
                toggles=[toggle.id for toggle in asked.toggles] if asked.named else [],
                folder=tempfile.mkdtemp(dir=self.folder),  # nothing of an earlier one is in it
                device=asked.device,
            )
            python = self.left.target.python
            log = self.folder.with_name(f"{self.folder.name}-{self._made}.log")
            worker = GuardWorker(python, setting, asked.folders, asked.place(), log)
            self.workers.append(worker)

    @property
    def runs_alone(self) -> bool:
        """Whether what it runs is run again, with the machine to itself."""
        busy = (task for worker in self.workers for task in worker.running.values())
        return any(task in self.left.alone for task in busy)

    @property
    def waits_alone(self) -> bool:
        waiting = self.left.waiting
        return bool(waiting) and waiting[0] in self.left.alone

    def next(self) -> tuple[GuardWorker, Key] | None:
        """A task and the worker to give it to."""
        waiting = self.left.waiting
        for worker in self.workers:
            if waiting and worker.ready and (self.forks or not worker.running):
                return worker, waiting.popleft()
        return None

    def retire(self, worker: GuardWorker, kill: bool = False) -> int:
        self.workers.remove(worker)
        return worker.end(kill)

    def give_up(self) -> None:
        self._given_up = True

    def end(self) -> None:
        self.ended = True
        ending = [*self.workers, *self._leaving]
        for worker in ending:
            worker.line.hang_up()  # all of them before one is waited for
        for worker in ending:
            worker.end()
        self.workers.clear()
        self._leaving.clear()
