"""One release of a run: its workers, and what they may be given."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from harness.runs.prove.plan import ReleasePlan
from harness.workers.messages import GuardWorkerSettings, TaskKey
from harness.workers.worker_process import GuardWorkerProcess


class ReleaseWorkerPool:
    """A release's workers and its part of the plan.

    A worker that forks runs any number at a time, so there is one. Workers on a GPU run one each; a
    spare one imports meanwhile, for when a test costs a worker.
    """

    def __init__(self, plan: ReleasePlan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder / plan.target.name
        self.workers: list[GuardWorkerProcess] = []
        self._ending_workers: list[
            GuardWorkerProcess
        ] = []  # they are told to end, and nobody waits for it
        self.can_fork = True  # until a worker says that it cannot
        self.started_at: float | None = None
        self.has_ended = False
        self._is_abandoned = False
        self._worker_count = 0

    @property
    def running_count(self) -> int:
        return sum(len(worker.running_tasks) for worker in self.workers)

    @property
    def is_done(self) -> bool:
        """Nothing is left to run, or nobody to run it."""
        done = self.plan.is_collected and not self.plan.waiting_tasks and not self.running_count
        return self._is_abandoned or done

    @property
    def has_only_exclusive_left(self) -> bool:
        """Nothing waits here but what is to run alone."""
        return self.plan.is_collected and (not self.plan.waiting_tasks or self.is_exclusive_next)

    def start_workers(self) -> None:
        """As many as have something to do, and no more."""
        asked = self.plan.request
        if self.started_at is None:
            self.started_at = time.monotonic()
        wanted = 1 if self.can_fork else asked.jobs
        if not self.can_fork and self.plan.is_collected:
            waiting = len(self.plan.waiting_tasks)
            if self.has_only_exclusive_left:
                waiting = min(1, waiting)
            wanted = min(asked.jobs, waiting + self.running_count) + bool(waiting)
        idle = [worker for worker in self.workers if worker.is_ready and not worker.running_tasks]
        for worker in idle[: max(0, len(self.workers) - wanted - 1)]:
            worker.pipe.close_write_end()
            self.workers.remove(worker)
            self._ending_workers.append(worker)
        while len(self.workers) < wanted and not self.is_done:
            self._worker_count += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            setting = GuardWorkerSettings(
                release=self.plan.target.requested_as or self.plan.target.name,
                pytest_arguments=asked.build_pytest_arguments(),
                sides=asked.sides,
                toggle_ids=[toggle.id for toggle in asked.toggles]
                if asked.has_named_toggles
                else [],
                folder=tempfile.mkdtemp(dir=self.folder),  # nothing of an earlier one is in it
                device=asked.device,
            )
            python = self.plan.target.python
            log = self.folder.with_name(f"{self.folder.name}-{self._worker_count}.log")
            worker = GuardWorkerProcess(
                python, setting, asked.toggle_folders, asked.find_working_folder(), log
            )
            self.workers.append(worker)

    @property
    def is_running_exclusive(self) -> bool:
        """Whether what it runs is run again, with the machine to itself."""
        busy = (task for worker in self.workers for task in worker.running_tasks.values())
        return any(task in self.plan.exclusive_tasks for task in busy)

    @property
    def is_exclusive_next(self) -> bool:
        waiting = self.plan.waiting_tasks
        return bool(waiting) and waiting[0] in self.plan.exclusive_tasks

    def take_next_task(self) -> tuple[GuardWorkerProcess, TaskKey] | None:
        """A task and the worker to give it to."""
        waiting = self.plan.waiting_tasks
        for worker in self.workers:
            if waiting and worker.is_ready and (self.can_fork or not worker.running_tasks):
                return worker, waiting.popleft()
        return None

    def retire_worker(self, worker: GuardWorkerProcess, kill: bool = False) -> int:
        self.workers.remove(worker)
        return worker.end(kill)

    def abandon(self) -> None:
        self._is_abandoned = True

    def end(self) -> None:
        self.has_ended = True
        ending = [*self.workers, *self._ending_workers]
        for worker in ending:
            worker.pipe.close_write_end()  # all of them before one is waited for
        for worker in ending:
            worker.end()
        self.workers.clear()
        self._ending_workers.clear()
