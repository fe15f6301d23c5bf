"""The engine of runs: it hands items to workers, sees how each ends, repeats, and stops.

A kind of run is a `WorkPool`: what an item is, how a worker is started, what a message means. The
engine has the one loop. It has one thread and one `select`, over all pools of a run (a pool is one
release). The first pool with a waiting item goes first, and the next pool's worker imports
meanwhile, so that no core waits for an import.

Invariant: each item that a worker got comes back once, by `finish` or by `record_loss`. If a worker
ends, the items that it ran are not blamed at once, as only one of them may have ended it: each runs
again alone, with nothing beside it, after all others.

Example: items 7, 8 and 9 run when their worker ends. Another worker starts, and runs the waiting
items, then 7, 8 and 9, one after another. If 8 ends its worker again, 8 is lost.

Ctrl-C and SIGTERM take effect between two turns of the loop, so each result is stored whole.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, Self, TypeVar

from harness.core import process_exit
from harness.core.errors import NotReadyError, UnfixError
from harness.core.pipes import serve_ready
from harness.core.signals import record_stop_signals

ItemT = TypeVar("ItemT", bound=Hashable)
MessageT = TypeVar("MessageT")

START_TIMEOUT = 900.0  # seconds for the imports of a worker, before it counts as hanging
POLL_SECONDS = 0.2  # the longest wait for a message
MAX_ACTIVE_POOLS = 2  # at once with present or future items
_SERIALS = count(1)
_MESSAGE_SLACK = 30.0  # seconds beyond its limit until a missing message means a hanging worker


class Worker(Generic[MessageT]):
    """What runs items; the engine waits for its messages.

    The defaults are those of a worker that is ready at once and has no process of its own.
    """

    is_ready = True  # it has reported what it can run
    started = 0.0  # on the monotonic clock

    def fileno(self) -> int:
        """Return the descriptor that has input once there is a message, or the worker ended."""
        raise NotImplementedError

    def receive_messages(self) -> Sequence[MessageT] | None:
        """Return the messages that have arrived; None once the worker has ended."""
        raise NotImplementedError

    @property
    def unsent_ends(self) -> Sequence[int]:
        """The descriptors that take more of a request that is only sent in part."""
        return ()

    def send_rest(self) -> None:
        """Send more of such a request."""

    def ask_to_end(self) -> None:
        """Ask the worker to end, without waiting for it."""

    def end(self, kill: bool = False) -> int:
        """End the worker and all below it; return its exit code, negative for a signal."""
        return 0

    def read_log_tail(self) -> str:
        return ""


@dataclass(frozen=True)
class WorkerEnd:
    """The unexpected end of a worker."""

    code: int
    is_overdue: bool  # the engine killed it, since a message was overdue
    log: str

    @property
    def words(self) -> str:
        return process_exit.describe_code(self.code)


@dataclass(frozen=True)
class Assignment(Generic[ItemT]):
    """An item that a worker runs."""

    serial: int  # of the request; no other one has it, so that no file is another's
    item: ItemT
    worker: Any
    deadline: float
    first_loss: str  # how the item's worker ended when the item ran before; '' if it did not
    is_alone: bool


class WorkPool(Generic[ItemT, MessageT]):
    """The items of one release of a run, and the workers that run them."""

    shares_workers = True  # a worker runs any number of items at a time, each in a fork
    repeats_lost_items = True  # an item whose worker ended may be innocent
    may_end_idle = False  # a worker exits by itself once it has answered

    def __init__(self, name: str, jobs: int = 1) -> None:
        self.name = name  # of its release
        self.jobs = jobs
        self.waiting: deque[ItemT] = deque()
        self.alone: deque[ItemT] = deque()  # items that run with nothing beside them
        self.blocked: deque[ItemT] = deque()  # until `refill` finds what they need prepared
        self.workers: list[Any] = []
        self.running: dict[int, Assignment[ItemT]] = {}  # by serial
        self.started: float | None = None
        self.is_collected = False  # a worker has reported what it can run
        self.has_ended = False
        self.is_given_up = False
        self._first_losses: dict[ItemT, str] = {}
        self._ending_workers: list[Any] = []
        self._idle_ends = 0  # in a row

    # What a kind of run adds

    def start_worker(self) -> Any:
        """Start a worker, which reports by a message that it is ready."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what can be done while the first worker imports."""

    def refill(self) -> None:
        """Add to `waiting` what a free job may run next; called when nothing waits."""

    def compute_limit(self, item: ItemT) -> float:
        """Return the seconds after which the end of an item is overdue."""
        return float("inf")

    def send_item(self, assignment: Assignment[ItemT]) -> None:
        raise NotImplementedError

    def handle_message(self, worker: Any, message: MessageT) -> None:
        raise NotImplementedError

    def record_loss(self, lost: Assignment[ItemT], end: WorkerEnd) -> None:
        """Record the end of an item that ended its worker."""
        raise NotReadyError(f"SGLang {self.name}: a worker ended ({end.words}): {end.log}")

    def report_lost_worker(self, end: WorkerEnd, was_idle: bool) -> None:
        """Tell that another worker takes the place of one that ended."""

    def check_limits(self, now: float) -> None:
        """Enforce further limits, once in each turn of the loop."""

    def give_up(self, problem: str, log: str = "", is_usage_error: bool = False) -> None:
        """End the run, or set `is_given_up`: the workers of this pool cannot run anything."""
        error = UnfixError if is_usage_error else NotReadyError
        raise error(f"SGLang {self.name}: {problem}\n{log}".strip())

    def finish_pool(self) -> None:
        """Take note that nothing is left to run."""

    # What it may use

    def accept_worker(self, worker: Any) -> bool:
        """Record that a worker is ready; return whether it is the pool's first one."""
        worker.is_ready = True
        is_first, self.is_collected = not self.is_collected, True
        return is_first

    def finish(self, serial: int) -> Assignment[ItemT]:
        """Return the assignment of an item that has ended, and forget that it runs."""
        self._idle_ends = 0
        return self.running.pop(serial)

    def repeat_alone(self, assignment: Assignment[ItemT], why: str) -> bool:
        """Run an item once more, with nothing beside it; False if it was lost before."""
        if assignment.first_loss:
            return False
        self._first_losses[assignment.item] = why or "it was lost"
        self.alone.append(assignment.item)
        return True

    def retire_worker(self, worker: Any, kill: bool = False) -> int:
        self.workers.remove(worker)
        code: int = worker.end(kill)
        return code

    def end_workers(self) -> None:
        ending = [*self.workers, *self._ending_workers]
        for worker in ending:
            worker.ask_to_end()  # all of them, before the first wait
        for worker in ending:
            worker.end()
        self.workers.clear()
        self._ending_workers.clear()

    # What the engine asks

    @property
    def is_done(self) -> bool:
        left = self.waiting or self.alone or self.blocked or self.running
        return self.has_ended or self.is_given_up or (self.is_collected and not left)

    def has_more(self) -> bool:
        """Return whether a pool that has run all its items finds another one."""
        if not (self.is_given_up or self.has_ended):
            self.refill()
        return not self.is_done

    @property
    def has_only_alone_left(self) -> bool:
        """Return whether all waiting items need the machine to themselves."""
        return self.is_collected and not self.waiting

    @property
    def runs_alone(self) -> bool:
        return any(each.is_alone for each in self.running.values())

    def count_workers(self) -> int:
        """Return how many workers there should be.

        If each runs one item at a time, there are as many as items that can run, and a spare one
        that imports meanwhile, for when an item ends its worker.
        """
        if self.shares_workers or not self.is_collected:
            return 1 if self.shares_workers else self.jobs
        waiting = len(self.waiting) or min(1, len(self.alone))
        return min(self.jobs, waiting + len(self.running)) + bool(waiting)

    def keep_workers(self) -> None:
        """Start the workers that are missing, and let idle ones go."""
        wanted = self.count_workers()
        busy = {id(each.worker) for each in self.running.values()}
        idle = [each for each in self.workers if each.is_ready and id(each) not in busy]
        for worker in idle[: max(0, len(self.workers) - wanted - 1)]:
            worker.ask_to_end()
            self.workers.remove(worker)
            self._ending_workers.append(worker)
        while len(self.workers) < wanted and not self.is_done:
            self.workers.append(self.start_worker())

    def find_free_worker(self) -> Any:
        """Return a worker that can run one more item, or None."""
        busy = {id(each.worker) for each in self.running.values()}
        for worker in self.workers:
            if worker.is_ready and (self.shares_workers or id(worker) not in busy):
                return worker
        return None

    def take_assignment(self, may_run_alone: bool) -> bool:
        """Send the next item to a free worker; return whether there were both."""
        worker = self.find_free_worker()
        if worker is None:
            return False
        if not self.waiting:
            self.refill()
        if not self.waiting and not (may_run_alone and self.alone):
            return False
        is_alone = not self.waiting
        item = (self.alone if is_alone else self.waiting).popleft()
        loss = self._first_losses.pop(item, "") if is_alone else ""
        deadline = time.monotonic() + self.compute_limit(item)
        assignment = Assignment(next(_SERIALS), item, worker, deadline, loss, is_alone)
        self.running[assignment.serial] = assignment
        self.send_item(assignment)
        return True

    def list_running(self, worker: Any) -> list[Assignment[ItemT]]:
        return [each for each in self.running.values() if each.worker is worker]

    def is_overdue(self, worker: Any, now: float) -> bool:
        """Return whether a message is overdue; a worker that forks ends its forks in time."""
        if not worker.is_ready:
            return bool(now - worker.started > START_TIMEOUT)
        slack = _MESSAGE_SLACK if self.shares_workers else 0.0
        return any(now > each.deadline + slack for each in self.list_running(worker))

    def receive_from(self, worker: Any) -> None:
        """Take the messages of a worker that has some, or has ended."""
        messages = worker.receive_messages()
        if messages is None:
            self.handle_end(worker)
        for message in messages or ():
            self.handle_message(worker, message)

    def handle_end(self, worker: Any, is_overdue: bool = False) -> None:
        """Repeat or record the items of a worker that ended or hangs."""
        end = WorkerEnd(self.retire_worker(worker, is_overdue), is_overdue, worker.read_log_tail())
        lost = self.list_running(worker)
        if not worker.is_ready:
            when = "did not start in time" if is_overdue else "ended before it could begin"
            self.give_up(f"the worker {when} ({end.words}):", end.log)
            return
        if not lost and self.may_end_idle and not end.code:
            return
        if not lost:
            self._idle_ends += 1
            if self._idle_ends > 1:
                how = f"the worker ended while it had nothing to do ({end.words})"
                self.give_up(how, end.log)
                return
        why = f"it ended its worker ({end.words})"
        for each in lost:
            del self.running[each.serial]
            if not (self.repeats_lost_items and self.repeat_alone(each, why)):
                self.record_loss(each, end)
        self.report_lost_worker(end, was_idle=not lost)  # which may end the run


class Engine:
    """Runs the items of pools, at most `jobs` of them at a time."""

    def __init__(self, pools: Sequence[WorkPool[Any, Any]], jobs: int) -> None:
        self.pools = pools
        self.jobs = jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        for pool in self.pools:
            pool.end_workers()

    def run(self) -> None:
        """Run until every pool is done; each of them may then get more to run."""
        deque(self.iterate_turns(), maxlen=0)

    def iterate_turns(self) -> Iterator[None]:
        """Yield after each turn of the loop, so that the caller may take results."""
        with record_stop_signals() as stop_signals:
            while pools := self.select_active_pools():
                if stop_signals:
                    raise KeyboardInterrupt
                self._start_pools(pools)
                self.hand_out_items(pools)
                self._receive_messages(pools)
                yield
                for pool in pools:
                    if pool.is_done and not pool.has_more():
                        pool.has_ended = True
                        pool.finish_pool()
            if stop_signals:  # in the last turn: the caller may have more to run
                raise KeyboardInterrupt

    def select_active_pools(self) -> list[WorkPool[Any, Any]]:
        """Return the pools that have begun, and the next ones while few have waiting items."""
        left = [pool for pool in self.pools if not pool.has_ended]
        active = [pool for pool in left if pool.started is not None]
        free = MAX_ACTIVE_POOLS - sum(not pool.has_only_alone_left for pool in active)
        return active + [pool for pool in left if pool.started is None][: max(0, free)]

    def _start_pools(self, pools: list[WorkPool[Any, Any]]) -> None:
        for pool in pools:
            is_first_start = pool.started is None
            if is_first_start:
                pool.started = time.monotonic()
            pool.keep_workers()
            if is_first_start:
                pool.prepare()

    def hand_out_items(self, pools: list[WorkPool[Any, Any]]) -> None:
        for pool in pools:
            while self._may_start(pools) and pool.take_assignment(self._may_run_alone(pools)):
                pass

    def _may_start(self, pools: list[WorkPool[Any, Any]]) -> bool:
        running = sum(len(pool.running) for pool in pools)
        return running < self.jobs and not any(pool.runs_alone for pool in pools)

    def _may_run_alone(self, pools: list[WorkPool[Any, Any]]) -> bool:
        """Return whether nothing runs, and nothing waits that may run beside others."""
        return all(
            pool.has_only_alone_left and not (pool.running or pool.blocked) for pool in pools
        )

    def _receive_messages(self, pools: list[WorkPool[Any, Any]]) -> None:
        pool_by_worker = {worker: pool for pool in pools for worker in pool.workers}
        if not pool_by_worker or all(pool.is_done for pool in pools):
            return
        for worker in pool_by_worker:
            with contextlib.suppress(BrokenPipeError):  # it has ended, which its messages show
                worker.send_rest()
        unsent = [end for worker in pool_by_worker for end in worker.unsent_ends]
        receive = {each: partial(pool.receive_from, each) for each, pool in pool_by_worker.items()}
        serve_ready(receive, POLL_SECONDS, unsent)
        now = time.monotonic()
        for worker, pool in pool_by_worker.items():
            if worker in pool.workers and pool.is_overdue(worker, now):
                pool.handle_end(worker, is_overdue=True)
        for pool in pools:
            pool.check_limits(now)
