"""Whether the ranks of a server stand still, read from the kernel's counts and not from a clock.

A rank that works on a request runs its main thread, or its main thread waits for other threads or
processes of the rank that run. A rank that waits for another rank does neither: its main thread
sleeps and is never woken. If all ranks are like that at the same time, no answer can come any more.

A slow machine is no standstill. A thread that wants a processor, or waits for a disk, is not
asleep; if it has not slept since the last sample, its rank is at work. Threads that only poll sleep
between their polls: gloo's do so a hundred times a second. So do threads that swap Python's lock or
talk through pipes; the time on a processor distinguishes those that work from those that poll.

Example, the counts of two ranks 0.5 s apart:

    TP0 main S 140/264 → S 140/264    gloo R 9702 → R 9756: it has slept    TP0 stands still
    TP1 main S 125/178 → S 125/178    cc1plus R 3 → R 3: it computes        TP1 is at work
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core import processes
from harness.workers.servers import rank_stacks
from harness.workers.servers.server import SglangServer

POLL_SECONDS = 0.5
MIN_STILL_SECONDS = 10.0  # a fork of a preloaded process starts in less
MAX_POLLING_TICKS = 2  # hundredths of a second on a processor, from one sample to the next
WORKING_STATES = "RD"  # on a processor, or waiting for one; waiting for a disk
SLEEPING_STATES = "S"


@dataclass(frozen=True)
class ThreadActivity:
    """One thread, as the kernel counts it."""

    state: str
    sleeps: int  # how often it went to sleep by itself
    preemptions: int  # how often it lost its processor
    ticks: int = 0  # how long it was on a processor, in hundredths of a second

    def is_working(self, before: ThreadActivity | None) -> bool:
        """Return whether it works, or wants to; `before` is the same thread at the last sample."""
        if self.ticks - (before.ticks if before is not None else 0) > MAX_POLLING_TICKS:
            return True
        has_slept = before is not None and before.sleeps != self.sleeps
        return self.state in WORKING_STATES and not has_slept


@dataclass(frozen=True)
class RankActivity:
    """The threads of a rank, and of all processes below it, by their ids."""

    main: int
    threads: Mapping[int, ThreadActivity]

    def has_moved(self, before: RankActivity) -> bool:
        """Return whether the rank did anything for a request since the last sample."""
        main = self.threads.get(self.main)
        if main is None or main != before.threads.get(self.main):
            return True
        return main.state not in SLEEPING_STATES or any(
            one.is_working(before.threads.get(number)) for number, one in self.threads.items()
        )


def read_rank_activities(supervisor_pid: int) -> dict[int, RankActivity]:
    """Read what each rank of a server does, by the pid of the rank."""
    return {
        pid: RankActivity(pid, _read_threads([pid, *processes.iterate_descendants(pid)]))
        for _, pid in rank_stacks.list_ranks(supervisor_pid)
    }


def stand_still(before: Mapping[int, RankActivity], after: Mapping[int, RankActivity]) -> bool:
    """Return whether no rank did anything between two samples; without ranks nothing is known."""
    return bool(after) and all(
        pid in before and not rank.has_moved(before[pid]) for pid, rank in after.items()
    )


def _read_threads(pids: list[int]) -> dict[int, ThreadActivity]:
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError, LookupError, ValueError):
                    found[int(task.name)] = _parse_thread(
                        (task / "status").read_text(), (task / "stat").read_text()
                    )
    return found


def _parse_thread(status: str, stat: str) -> ThreadActivity:
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    user, system = stat.rpartition(")")[2].split()[11:13]
    return ThreadActivity(
        fields["State"].split()[0],
        int(fields["voluntary_ctxt_switches"]),
        int(fields["nonvoluntary_ctxt_switches"]),
        int(user) + int(system),
    )


class StandstillWatch:
    """Ends a server as soon as its ranks have stood still for as long as its start took.

    The start is the healthy part of the same server on the same machine under the same load; the
    limit is ten seconds at least. Use it as a context while the server has something to answer;
    `hang` then says where the ranks stood. An error of the watch ends the server, and is raised at
    the end of the context.
    """

    def __init__(self, server: SglangServer, *, enabled: bool = True) -> None:
        self.hang = ""
        self._server = server
        self._is_enabled = enabled
        self._error: Exception | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()  # a server that has answered is not ended any more
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StandstillWatch:
        if self._is_enabled:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over.set()
        if self._is_enabled:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        try:
            self._wait_for_standstill()
        except Exception as error:
            self._error = error
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._server.stop()

    def _wait_for_standstill(self) -> None:
        server = self._server
        before = read_rank_activities(server.handle.pid)
        moved_at = time.monotonic()
        while not self._is_over.wait(POLL_SECONDS):
            after = read_rank_activities(server.handle.pid)
            now = time.monotonic()
            if not stand_still(before, after):
                moved_at = now
            elif now - moved_at >= max(server.seconds_to_ready, MIN_STILL_SECONDS):
                with self._lock:
                    if not self._is_over.is_set():
                        self.hang = server.describe_hang()
                        server.stop()  # the clients' requests end with it
                return
            before = after
