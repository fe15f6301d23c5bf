"""What this process prepares while it works, and later runs find ready: compiled kernels, modules.

Listeners are entered around each such block: it is no part of what a test takes. A block inside of
another one is part of it: the runtime that is compiled for the first kernel counts once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

LISTENERS: list[Callable[[], contextlib.AbstractContextManager[None]]] = []
_running = threading.local()


@contextlib.contextmanager
def measure_preparations() -> Iterator[list[float]]:
    """Collect the seconds of each such block that ends during this one."""
    seconds: list[float] = []

    @contextlib.contextmanager
    def measure_block() -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds.append(time.monotonic() - begun)

    LISTENERS.append(measure_block)
    try:
        yield seconds
    finally:
        LISTENERS.remove(measure_block)


@contextlib.contextmanager
def announce_preparation() -> Iterator[None]:
    """Enter the listeners around this block, unless it is part of another."""
    if getattr(_running, "is_inside", False):
        yield
        return
    _running.is_inside = True
    try:
        with contextlib.ExitStack() as stack:
            for listen in LISTENERS:
                stack.enter_context(listen())
            yield
    finally:
        _running.is_inside = False
