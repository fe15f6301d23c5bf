"""The time limit of a guard under a fault: it does not run while the changed code is built."""

from __future__ import annotations

import os
import signal
import threading

from harness.core import child_process, preparation
from harness.runs.mutate import fault_attempt


def read_timer() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_a_fork_that_builds_gets_no_limit() -> None:
    """It has no timer of its own: one that is set at the end of its build would kill it."""

    def fork_and_build() -> list[float]:
        with fault_attempt._limit_time(60.0):
            pid = os.fork()
            if pid == 0:
                with preparation.announce_preparation():
                    during = read_timer()
                os._exit(0 if during == read_timer() == 0.0 else 3)
            return [float(os.waitpid(pid, 0)[1]), read_timer()]

    status, left = child_process.call_in_fork(fork_and_build)
    assert status == 0
    assert 0 < left <= 60.0


def test_builds_in_other_threads_stop_the_time_until_the_last_one_ends() -> None:
    def build_in_threads() -> list[float]:
        started, ends = threading.Semaphore(0), [threading.Event(), threading.Event()]

        def build(end: threading.Event) -> None:
            with preparation.announce_preparation():
                started.release()
                end.wait()

        threads = [threading.Thread(target=build, args=[end]) for end in ends]
        times_left = []
        with fault_attempt._limit_time(60.0):
            threads[0].start()
            started.acquire()
            times_left.append(read_timer())
            threads[1].start()
            started.acquire()
            ends[0].set()
            threads[0].join()
            times_left.append(read_timer())
            ends[1].set()
            threads[1].join()
            times_left.append(read_timer())
        return times_left

    first, second, after = child_process.call_in_fork(build_in_threads)
    assert first > 60.0
    assert second > 60.0
    assert 0 < after <= 60.0


def test_a_build_that_outlives_its_guard_sets_no_timer() -> None:
    def build_beyond() -> float:
        started, end = threading.Event(), threading.Event()

        def build() -> None:
            with preparation.announce_preparation():
                started.set()
                end.wait()

        thread = threading.Thread(target=build)
        with fault_attempt._limit_time(60.0):
            thread.start()
            started.wait()
        end.set()
        thread.join()
        return read_timer()

    assert child_process.call_in_fork(build_beyond) == 0.0
