"""What signals do in a checked pytest: SIGTERM ends the run as ^C does, SIGALRM ends one test."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from harness.core import preparation
from harness.sanitizer.check.interrupts import stop_kernels_at


class TestTimeout(Exception):
    """A test that took longer than `--sanitize-timeout` allows."""

    __test__ = False  # not a test class


def end_orderly_at_termination() -> None:
    """End at SIGTERM with pytest's own summary, as at ^C; a handler of the program's stays."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt_run)
    stop_kernels_at(signal.SIGINT, signal.SIGTERM)


def _interrupt_run(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextlib.contextmanager
def limit_seconds(seconds: float | None) -> Iterator[None]:
    """Raise TestTimeout in this block when it has taken so long, without what it compiled."""
    if not seconds:
        yield
        return

    def end_test(number: int, frame: FrameType | None) -> None:
        raise TestTimeout(f"the test took longer than {seconds:g} s (--sanitize-timeout)")

    @contextlib.contextmanager
    def pause_clock() -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, left)

    before = signal.signal(signal.SIGALRM, end_test)
    stop_kernels_at(signal.SIGALRM)
    preparation.LISTENERS.append(pause_clock)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        preparation.LISTENERS.remove(pause_clock)
        signal.signal(signal.SIGALRM, before)
