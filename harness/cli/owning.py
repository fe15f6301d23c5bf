"""A command that starts processes: what stops it, and that it leaves none."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from harness import processes


@contextlib.contextmanager
def owning(orphans: bool = True) -> Iterator[None]:
    """A SIGTERM stops the block as a Ctrl-C does; what was started in it is ended with it.

    So are `orphans` of a worker that was ended; until the end of the block they may be zombies.
    """
    if orphans:
        processes.adopt_orphans()
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        processes.end_all_below(os.getpid())
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
