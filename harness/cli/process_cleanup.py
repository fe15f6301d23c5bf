"""A command that starts processes ends them, however it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from harness.core import processes


@contextlib.contextmanager
def end_processes_on_exit(include_orphans: bool = True) -> Iterator[None]:
    """A SIGTERM stops the block as a Ctrl-C does; at its end all child processes are killed.

    `include_orphans` adds the children of dead workers, which may be zombies until then.
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
