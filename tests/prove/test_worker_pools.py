"""The active releases of a run, and the number of their workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.pipes import PipeEnd
from harness.runs.prove import worker_pool
from harness.runs.prove.plan import ProveRequest, ReleasePlan
from harness.runs.prove.runner import ProveRunner
from harness.runs.prove.worker_pool import ReleaseWorkerPool
from harness.store.prove.values import CellResult
from harness.workers.release_target import ReleaseTarget
from harness.workers.worker_process import WorkerProcess

TASKS = [("toggle", f"guard-{number}", "fixed") for number in range(4)]
READS = "import os, sys; os.read(int(sys.argv[1]), 1)"  # it ends with the request to end


class SlowWorker(WorkerProcess[Any]):
    """A worker of a GPU that is ready at once and takes a task for as long as the test wants."""

    def __init__(self, python: Path, setting: Any, folders: Any, place: Path, log: Path) -> None:
        super(WorkerProcess, self).__init__([sys.executable, "-c", READS], {}, log)
        self.folder, self.is_ready, self.started = Path(setting.folder), True, 0.0
        self.running_tasks: dict[int, Any] = {}

    def request_test(self, task: Any, *limits: Any, **options: Any) -> int:
        self.running_tasks[0] = task
        return 0

    def is_overdue(self, *times: Any) -> bool:
        return False


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProveRunner]:
    """A run over four releases on a GPU, of which each has the same tasks."""
    monkeypatch.setattr(worker_pool, "GuardWorkerProcess", SlowWorker)
    targets = [ReleaseTarget(name, Path(sys.executable), SimpleNamespace()) for name in "abcd"]  # type: ignore[arg-type]
    request = ProveRequest("prove", targets, [], has_named_toggles=False, device="cuda", jobs=2)
    one: Any = object.__new__(ProveRunner)
    one.request = request
    one.pools = [ReleaseWorkerPool(ReleasePlan(request, target), tmp_path) for target in targets]
    yield one
    for pool in one.pools:
        pool.end()


def begin_work(pool: ReleaseWorkerPool, *tasks: Any, alone: bool = False) -> None:
    pool.can_fork, pool.plan.is_collected = False, True
    pool.plan.waiting_tasks.extend(tasks)
    named = {
        (toggle, guard): CellResult(guard, toggle, "", "cuda", "fixed")
        for toggle, guard, _ in tasks
    }
    pool.plan.cells.update(named)
    pool.plan.exclusive_tasks.update(dict.fromkeys(tasks, "the memory was full") if alone else {})
    pool.start_workers()


def end_all(pool: ReleaseWorkerPool) -> None:
    for worker in pool.workers:
        worker.running_tasks.clear()


def test_a_release_whose_last_tests_run_makes_room_for_the_next(runner: ProveRunner) -> None:
    first, second, *_ = runner.pools
    begin_work(first, *TASKS[:1])
    begin_work(second, *TASKS)
    assert runner.select_active_pools() == [first, second]
    runner.hand_out_tasks([first, second])
    assert first.running_count == second.running_count == 1
    assert runner.select_active_pools() == runner.pools[:3]


def test_an_exclusive_task_waits_for_every_release(runner: ProveRunner) -> None:
    first, second, third, fourth = runner.pools
    begin_work(first, *TASKS[:2], alone=True)
    for pool in (second, third, fourth):
        begin_work(pool, TASKS[0])
        runner.hand_out_tasks(runner.select_active_pools())
        assert first.running_count == 0
        end_all(pool)
    runner.hand_out_tasks(runner.select_active_pools())
    assert first.running_count == 1  # one, though two have waited and two could run


def test_workers_without_a_task_are_let_go(runner: ProveRunner) -> None:
    first = runner.pools[0]
    begin_work(first, *TASKS)
    assert len(first.workers) == 3  # two, plus one for a test that costs its worker
    first.plan.waiting_tasks.clear()
    first.workers[2].running_tasks[0] = TASKS[0]
    first.start_workers()
    assert len(first.workers) == 2
    assert first.running_count == 1  # running tasks continue


def test_all_workers_are_asked_to_end_before_one_is_awaited(
    runner: ProveRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runner.pools[0]
    begin_work(first, *TASKS)
    events: list[str] = []
    request, await_exit = PipeEnd.close_write_end, SlowWorker.wait_or_kill

    def close_write_end(pipe: PipeEnd) -> None:
        events.append("request")
        request(pipe)

    def wait_or_kill(worker: SlowWorker, seconds: float) -> int:
        events.append("wait")
        return await_exit(worker, seconds)

    monkeypatch.setattr(PipeEnd, "close_write_end", close_write_end)
    monkeypatch.setattr(SlowWorker, "wait_or_kill", wait_or_kill)
    first.end()
    assert events[: events.index("wait")].count("request") >= events.count("wait") == 3
