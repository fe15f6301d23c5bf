"""A worker that dies, hangs or leaves without a word costs what it ran alone, and nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from calling import wait_until
from toy_kind import ToyEngine, ToyPool, ToyWorker

from harness.core.errors import NotReadyError
from harness.workers import engine as engine_module
from harness.workers.engine import Assignment, WorkerEnd

PASSING = [f"pass {number}" for number in range(6)]


def run_pool(pool: ToyPool, jobs: int = 3) -> None:
    engine = ToyEngine([pool], jobs)
    try:
        engine.run()
    finally:
        engine.end()


def test_of_the_items_of_a_dead_worker_the_one_that_ends_another_is_blamed(tmp_path: Path) -> None:
    gate = tmp_path / "never"
    pool = ToyPool(tmp_path, f"await {gate}", "kill", *PASSING, jobs=3)
    gate.touch()
    run_pool(pool)
    assert sorted(pool.results) == sorted([f"await {gate}", *PASSING])
    assert {item: end.words for item, end in pool.lost.items()} == {"kill": "SIGKILL"}
    assert [beside for item, beside in pool.begun if item == "kill"][1:] == [0]
    assert pool.lost_workers == ["SIGKILL"] * 2
    assert pool.started_workers == 3


def test_an_item_that_ends_its_worker_once_has_a_result_and_says_so(tmp_path: Path) -> None:
    once = f"kill-once {tmp_path / 'killed'}"
    pool = ToyPool(tmp_path, *PASSING[:3], once, *PASSING[3:])
    run_pool(pool)
    assert not pool.lost
    assert len(pool.results) == 7
    assert pool.first_losses[once] == "it ended its worker (SIGKILL)"
    assert [beside for item, beside in pool.begun if item == once][-1] == 0


def test_an_item_that_is_lost_for_no_known_reason_is_repeated_once(tmp_path: Path) -> None:
    class Losing(ToyPool):
        def record(self, item: str, outcome: str) -> None:
            if self.lose_again(item):
                return
            super().record(item, outcome)

        def lose_again(self, item: str) -> bool:
            return item == "pass lost" and self.repeat_alone(self.ended, "")

        def finish(self, serial: int) -> Assignment[str]:
            self.ended = super().finish(serial)
            return self.ended

    pool = Losing(tmp_path, "pass lost")
    run_pool(pool)
    assert [item for item, _ in pool.begun] == ["pass lost"] * 2
    assert pool.first_losses == {"pass lost": "it was lost"}


def test_a_worker_that_leaves_without_a_word_is_no_end_of_the_run(tmp_path: Path) -> None:
    pool = ToyPool(tmp_path, "leave", *PASSING, forks=False, jobs=1)
    run_pool(pool, jobs=1)
    assert pool.lost["leave"].words == "exit code 0"
    assert len(pool.results) == len(PASSING)


def test_a_worker_that_hangs_is_ended_at_its_items_limit(tmp_path: Path) -> None:
    pool = ToyPool(tmp_path, "hang", *PASSING, forks=False, jobs=2, limit=1.0)
    run_pool(pool, jobs=2)
    assert pool.lost["hang"].is_overdue
    assert pool.lost["hang"].words == "SIGABRT"  # so that faulthandler writes its stacks
    assert len(pool.results) == len(PASSING)


def test_a_worker_whose_answer_does_not_come_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that forks ends its forks itself, so its own answer is late only if it hangs."""
    pool = ToyPool(tmp_path, "hang", "pass 1", limit=0.5)
    monkeypatch.setattr(engine_module, "_MESSAGE_SLACK", 0.5)
    run_pool(pool)
    assert pool.lost["hang"].is_overdue
    assert set(pool.results) == {"pass 1"}


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("dies", r"the worker ended before it could begin \(SIGKILL\):\nno such module"),
        ("hangs", r"the worker did not start in time \(SIGABRT\)"),
    ],
)
def test_a_worker_that_does_not_start_ends_the_run_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, words: str
) -> None:
    monkeypatch.setattr(engine_module, "START_TIMEOUT", 1.0)
    with pytest.raises(NotReadyError, match=words):
        run_pool(ToyPool(tmp_path, *PASSING, start=start))


def test_a_release_that_gives_up_leaves_the_others(tmp_path: Path) -> None:
    class RedPool(ToyPool):
        def give_up(self, problem: str, log: str = "", is_usage_error: bool = False) -> None:
            self.is_given_up, self.problem = True, problem

        problem = ""

    red, green = RedPool(tmp_path, *PASSING, start="dies", name="a"), ToyPool(tmp_path, *PASSING)
    engine = ToyEngine([red, green], 2)
    engine.run()
    engine.end()
    assert "ended before it could begin" in red.problem
    assert len(green.results) == len(PASSING)


def test_a_worker_that_was_killed_while_idle_is_replaced(tmp_path: Path) -> None:
    pool = ToyPool(tmp_path)
    engine = ToyEngine([pool], 1)
    engine.run()
    os.kill(pool.workers[0].process.pid, signal.SIGKILL)
    wait_until(lambda: pool.workers[0].process.poll() is not None)
    pool.waiting.append("pass 1")
    pool.has_ended = False
    engine.run()
    engine.end()
    assert set(pool.results) == {"pass 1"}
    assert pool.lost_workers == ["SIGKILL"]


def test_workers_that_end_while_idle_twice_in_a_row_end_the_run(tmp_path: Path) -> None:
    class Idle(ToyPool):
        def find_free_worker(self) -> None: ...  # it gives them nothing

    pool = Idle(tmp_path, "pass 1", start="ends when idle")
    with pytest.raises(NotReadyError, match="ended while it had nothing to do"):
        run_pool(pool)
    assert pool.started_workers == 2


def test_a_loss_is_recorded_before_a_lost_worker_may_end_the_run(tmp_path: Path) -> None:
    class Impatient(ToyPool):
        def report_lost_worker(self, end: WorkerEnd, was_idle: bool) -> None:
            self.give_up("its workers end")

    pool = Impatient(tmp_path, "kill", forks=False)
    with pytest.raises(NotReadyError, match="its workers end"):
        run_pool(pool)
    assert set(pool.lost) == {"kill"}


def test_a_worker_that_may_exit_after_its_answer_ends_nothing(tmp_path: Path) -> None:
    class Leaving(ToyPool):
        may_end_idle = True

        def find_free_worker(self) -> Any:
            return super().find_free_worker() if self.started_workers > 3 else None

        def start_worker(self) -> ToyWorker:
            self._start = "ends when idle" if self.started_workers < 3 else ""
            return super().start_worker()

    pool = Leaving(tmp_path, "pass 1")
    run_pool(pool)
    assert (set(pool.results), pool.lost_workers) == ({"pass 1"}, [])
