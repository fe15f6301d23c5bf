"""Ctrl-C and SIGTERM, noted instead of raised, for who must not be cut off in the middle."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def record_stop_signals() -> Iterator[list[int]]:
    """The stops that came so far, in a list that grows; what the caller ignores stays ignored."""
    came: list[int] = []
    before = {one: signal.getsignal(one) for one in STOP_SIGNALS}
    before = {one: how for one, how in before.items() if how is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
