"""Which releases of a run are at work, and with how many workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.prove import lanes as lanes_of
from harness.prove.lanes import Lane
from harness.prove.plan import Asked, Left, Target
from harness.prove.run import AHEAD, Proving
from harness.prove.workers import WorkerProcess
from harness.store.prove.values import Cell

TASKS = [("toggle", f"guard-{number}", "fixed") for number in range(4)]
# It ends a while after it is told to, as one does that gives back a GPU.
SLOW = "import os, sys, time; os.read(int(sys.argv[1]), 1); time.sleep(0.6)"


class Slow(WorkerProcess[Any]):
    """A worker of a GPU that is ready at once and takes a task for as long as the test wants."""

    def __init__(self, python: Path, setting: Any, folders: Any, place: Path, log: Path) -> None:
        super(WorkerProcess, self).__init__([sys.executable, "-c", SLOW], {}, log)
        self.folder, self.ready, self.started = Path(setting.folder), True, 0.0
        self.running: dict[int, Any] = {}

    def order(self, task: Any, *limits: Any, **options: Any) -> int:
        self.running[0] = task
        return 0

    def overdue(self, *times: Any) -> bool:
        return False


@pytest.fixture
def proving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proving]:
    """A run over four releases on a GPU, of which each has the same tasks."""
    monkeypatch.setattr(lanes_of, "GuardWorker", Slow)
    targets = [Target(name, Path(sys.executable), SimpleNamespace()) for name in "abcd"]  # type: ignore[arg-type]
    asked = Asked("prove", targets, [], named=False, device="cuda", jobs=2)
    one: Any = object.__new__(Proving)
    one.asked = asked
    one.lanes = [Lane(Left(asked, target), tmp_path) for target in targets]
    yield one
    for lane in one.lanes:
        lane.end()


def begin(lane: Lane, *tasks: Any, alone: bool = False) -> None:
    lane.forks, lane.left.known = False, True
    lane.left.waiting.extend(tasks)
    named = {
        (toggle, guard): Cell(guard, toggle, "", "cuda", "fixed") for toggle, guard, _ in tasks
    }
    lane.left.cells.update(named)
    lane.left.alone.update(dict.fromkeys(tasks, "the memory was full") if alone else {})
    lane.start_workers()


def end_all(lane: Lane) -> None:
    for worker in lane.workers:
        worker.running.clear()


def test_a_release_whose_last_tests_run_makes_room_for_the_next(proving: Proving) -> None:
    first, second, *_ = proving.lanes
    begin(first, *TASKS[:1])
    begin(second, *TASKS)
    assert proving.at_work() == [first, second]
    assert len(proving.at_work()) == AHEAD
    proving.hand_out([first, second])
    assert first.in_flight == second.in_flight == 1
    assert proving.at_work() == proving.lanes[:3]


def test_what_runs_alone_waits_for_every_release(proving: Proving) -> None:
    first, second, third, fourth = proving.lanes
    begin(first, *TASKS[:2], alone=True)
    for lane in (second, third, fourth):
        begin(lane, TASKS[0])
        proving.hand_out(proving.at_work())
        assert first.in_flight == 0
        end_all(lane)
    proving.hand_out(proving.at_work())
    assert first.in_flight == 1  # one, though two have waited and two could run


def test_workers_without_a_task_are_let_go(proving: Proving) -> None:
    first = proving.lanes[0]
    begin(first, *TASKS)
    assert len(first.workers) == 3  # two, and one for when a test costs its worker
    first.left.waiting.clear()
    first.workers[2].running[0] = TASKS[0]
    first.start_workers()
    assert len(first.workers) == 2
    assert first.in_flight == 1  # whatever runs goes on


def test_all_workers_end_at_once(proving: Proving) -> None:
    first = proving.lanes[0]
    begin(first, *TASKS)
    begun = time.monotonic()
    first.end()
    assert time.monotonic() - begun < 2 * 0.6
