"""The cleanup of a command's processes, whatever stops the command."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from harness.core import processes


@contextlib.contextmanager
def end_processes_on_exit(include_orphans: bool = True) -> Iterator[None]:
    """Stop the block on SIGTERM as on Ctrl-C, and kill all processes that it started at its end.

    `include_orphans` adds the children of dead workers, which may be zombies until then. A child
    from before the block is its caller's: a program that calls a command keeps its own ones.
    """
    earlier_children = set(processes.list_children(os.getpid()))
    if include_orphans:
        processes.adopt_orphans()
    before = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        processes.kill_descendants(os.getpid(), spared=earlier_children)
        signal.signal(signal.SIGTERM, before)


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
