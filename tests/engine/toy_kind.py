"""The smallest kind of run: an item is a word for a worker, its result the worker's answer."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core import processes
from harness.core.child_process import PipedProcess
from harness.workers.engine import Assignment, Engine, Worker, WorkerEnd, WorkPool

WORKER = Path(__file__).with_name("toy_worker.py")
MAX_QUIET_TURNS = 300  # of at most 0.2 s each, which a busy machine may need to start a worker
MAX_STARTS = 60  # of items, and of workers: no test here has so many


class ToyWorker(PipedProcess, Worker[str]):
    """The process, as the engine sees it."""

    def __init__(self, log: Path, start: str, forks: bool) -> None:
        environment = {**os.environ, "TOY_START": start, "TOY_FORKS": "1" if forks else ""}
        super().__init__([sys.executable, "-S", str(WORKER)], environment, log)
        self.is_ready = False
        self.started = time.monotonic()

    def fileno(self) -> int:
        return self.pipe.read_end

    @property
    def unsent_ends(self) -> list[int]:
        return self.pipe.pending_write_ends

    def send_rest(self) -> None:
        self.pipe.flush()

    def receive_messages(self) -> list[str] | None:
        lines = self.pipe.receive_lines()
        return None if self.pipe.is_peer_closed else [line.decode() for line in lines]

    def ask_to_end(self) -> None:
        self.pipe.close_write_end()

    def end(self, kill: bool = False) -> int:
        self.ask_to_end()
        if kill:
            self.process.send_signal(signal.SIGABRT)
        code = self.wait_or_kill(0.5)
        self.pipe.close()
        return code

    def read_log_tail(self) -> str:
        return processes.read_log_tail(self.log, 1000).strip()


class ToyPool(WorkPool[str, str]):
    """The words of one release, in the order in which they are given."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        name: str = "1.0.0",
        jobs: int = 2,
        forks: bool = True,
        limit: float = 60.0,
        start: str = "",
    ) -> None:
        super().__init__(name, jobs)
        self.waiting.extend(words)
        self.shares_workers = self.repeats_lost_items = forks
        self.results: dict[str, str] = {}
        self.first_losses: dict[str, str] = {}
        self.lost: dict[str, WorkerEnd] = {}
        self.lost_workers: list[str] = []
        self.started_workers = 0
        self.begun: list[tuple[str, int]] = []  # each item with the number of items beside it
        self._folder, self._limit, self._start = folder, limit, start

    def start_worker(self) -> ToyWorker:
        self.started_workers += 1
        return ToyWorker(self._folder / f"{self.name}.log", self._start, self.shares_workers)

    def compute_limit(self, item: str) -> float:
        return self._limit

    def send_item(self, assignment: Assignment[str]) -> None:
        self.begun.append((assignment.item, len(self.running) - 1))
        text = f"{assignment.serial} {assignment.item}"
        with contextlib.suppress(BrokenPipeError):  # the worker has just ended
            assignment.worker.pipe.send_without_blocking(text.encode())

    def handle_message(self, worker: Any, message: str) -> None:
        if message == "ready":
            self.accept_worker(worker)
            return
        serial, _, outcome = message.partition(" ")
        ended = self.finish(int(serial))
        self.first_losses[ended.item] = ended.first_loss
        self.record(ended.item, outcome)

    def record(self, item: str, outcome: str) -> None:
        assert item not in self.results, f"{item} ended twice"
        self.results[item] = outcome

    def record_loss(self, lost: Assignment[str], end: WorkerEnd) -> None:
        self.lost[lost.item] = end

    def report_lost_worker(self, end: WorkerEnd, was_idle: bool) -> None:
        self.lost_workers.append(end.words)

    def describe(self) -> str:
        """Describe what has happened so far."""
        ended = f"{len(self.results)} results, {len(self.lost)} lost, {self.lost_workers}"
        return f"{self.name}: {ended}, {self.started_workers} workers, begun {self.begun}"


class ToyEngine(Engine):
    """An engine that fails once nothing happens any more, or the same happens again and again."""

    def iterate_turns(self) -> Iterator[None]:
        quiet_turns, before = 0, ""
        for _ in super().iterate_turns():
            now = "; ".join(pool.describe() for pool in self.pools if isinstance(pool, ToyPool))
            quiet_turns = quiet_turns + 1 if now == before else 0
            before = now
            assert quiet_turns < MAX_QUIET_TURNS, f"nothing happens any more: {now}"
            for pool in self.pools:
                if isinstance(pool, ToyPool):
                    starts = max(len(pool.begun), pool.started_workers)
                    assert starts <= MAX_STARTS, f"the same happens again and again: {now}"
            yield
