"""The time limit of a guard under a fault: it does not run while the changed code is built."""

from __future__ import annotations

import contextlib
import faulthandler
import signal

import pytest

from harness.core import preparation
from harness.runs.mutate import fault_attempt


def test_a_build_is_no_part_of_a_guards_time(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = [0.0]

    def set_timer(which: int, seconds: float) -> tuple[float, float]:
        assert which == signal.ITIMER_REAL
        timers.append(seconds)
        return timers[-2] - 1.5, 0.0  # what is left of the last one

    monkeypatch.setattr(signal, "setitimer", set_timer)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(faulthandler, "register", lambda *_, **__: None)
    with contextlib.suppress(ZeroDivisionError), fault_attempt._limit_time(9.0):
        with preparation.announce_preparation():
            pass
        with preparation.announce_preparation():
            raise ZeroDivisionError
    building = fault_attempt.PREPARATION_SECONDS
    assert timers == [0.0, 9.0, building, 7.5, building, 6.0, 0]
    assert fault_attempt._limit_preparation not in preparation.LISTENERS
