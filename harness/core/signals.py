"""Records Ctrl-C and SIGTERM instead of raising, for code that must not be interrupted half-way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def record_stop_signals() -> Iterator[list[int]]:
    """Append stop signals to a list as they arrive; ignored signals stay ignored.

    Signals reach the main thread alone, so another thread leaves them to it.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handlers = {
        number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN
    }
    for number in handlers:
        signal.signal(number, lambda signal_number, _: received.append(signal_number))
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
