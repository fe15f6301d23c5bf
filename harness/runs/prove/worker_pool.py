"""One release of a run: its worker processes, and the next task for one of them."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from harness.runs.prove.plan import ReleasePlan
from harness.workers.messages import GuardWorkerSettings, TaskKey
from harness.workers.worker_process import GuardWorkerProcess


class ReleaseWorkerPool:
    """A release's workers and its part of the plan.

    A worker that forks runs any number of tests at a time, so there is one. Workers on a GPU run
    one test each, and a spare worker imports meanwhile, for when a test ends its worker.
    """

    def __init__(self, plan: ReleasePlan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder / plan.target.name
        self.workers: list[GuardWorkerProcess] = []
        self._ending_workers: list[GuardWorkerProcess] = []  # workers with closed pipes
        self.can_fork = True  # until a worker reports that it cannot
        self.started_at: float | None = None
        self.has_ended = False
        self._is_abandoned = False
        self._worker_count = 0
        self._run_folders: list[str] = []  # what the workers' runs may write

    @property
    def running_count(self) -> int:
        return sum(len(worker.running_tasks) for worker in self.workers)

    @property
    def is_done(self) -> bool:
        """Return whether no task is left, or the run has given the release up."""
        done = self.plan.is_collected and not self.plan.waiting_tasks and not self.running_count
        return self._is_abandoned or done

    @property
    def has_only_exclusive_left(self) -> bool:
        """Return whether all waiting tasks need the machine to themselves."""
        return self.plan.is_collected and (not self.plan.waiting_tasks or self.is_exclusive_next)

    def start_workers(self) -> None:
        """Start as many workers as there are tasks for, and end idle ones."""
        request = self.plan.request
        if self.started_at is None:
            self.started_at = time.monotonic()
        count = 1 if self.can_fork else request.jobs
        if not self.can_fork and self.plan.is_collected:
            waiting = len(self.plan.waiting_tasks)
            if self.has_only_exclusive_left:
                waiting = min(1, waiting)
            count = min(request.jobs, waiting + self.running_count) + bool(waiting)
        idle = [worker for worker in self.workers if worker.is_ready and not worker.running_tasks]
        for worker in idle[: max(0, len(self.workers) - count - 1)]:
            worker.pipe.close_write_end()
            self.workers.remove(worker)
            self._ending_workers.append(worker)
        while len(self.workers) < count and not self.is_done:
            self._worker_count += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not below `folder`: the path of a socket has at most 107 characters.
            run_folders = tempfile.mkdtemp(prefix="unfix-")
            self._run_folders.append(run_folders)
            settings = GuardWorkerSettings(
                release=self.plan.target.requested_as or self.plan.target.name,
                pytest_arguments=request.build_pytest_arguments(),
                sides=request.sides,
                toggle_ids=[toggle.id for toggle in request.toggles]
                if request.has_named_toggles
                else [],
                folder=tempfile.mkdtemp(dir=self.folder),  # empty, without earlier results
                run_folders=run_folders,
                device=request.device,
            )
            python = self.plan.target.python
            log = self.folder.with_name(f"{self.folder.name}-{self._worker_count}.log")
            worker = GuardWorkerProcess(
                python, settings, request.toggle_folders, request.find_working_folder(), log
            )
            self.workers.append(worker)

    @property
    def is_running_exclusive(self) -> bool:
        """Return whether a running task has the machine to itself."""
        busy = (task for worker in self.workers for task in worker.running_tasks.values())
        return any(task in self.plan.exclusive_tasks for task in busy)

    @property
    def is_exclusive_next(self) -> bool:
        waiting = self.plan.waiting_tasks
        return bool(waiting) and waiting[0] in self.plan.exclusive_tasks

    def take_next_task(self) -> tuple[GuardWorkerProcess, TaskKey] | None:
        """Return the next task and a free worker for it."""
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
            worker.pipe.close_write_end()  # all pipes before the first wait
        for worker in ending:
            worker.end()
        self.workers.clear()
        self._ending_workers.clear()
        for run_folders in self._run_folders:
            shutil.rmtree(run_folders, ignore_errors=True)
