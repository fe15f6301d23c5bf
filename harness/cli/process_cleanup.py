"""A command that starts processes: what stops it, and that it leaves none."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from harness.core import processes


@contextlib.contextmanager
def end_processes_on_exit(include_orphans: bool = True) -> Iterator[None]:
    """A SIGTERM stops the block as a Ctrl-C does; what was started in it is ended with it.

    So are `orphans` of a worker that was ended; until the end of the block they may be zombies.
    """
    if include_orphans:
        processes.adopt_orphans()
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        processes.kill_descendants(os.getpid())
        signal.signal(signal.SIGTERM, before)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
