"""Room on a GPU for tests that take gigabytes of it: a few of them at a time, in all processes.

Were all let in, each would hold a part of what it needs, wait for the rest, and none would get it.
"""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
import time
from pathlib import Path
from typing import Any

_GIB = 1 << 30
_LARGE = _GIB  # what is smaller finds its room
_PLENTY = 48 * _GIB  # that has to be free for one more, as most need no more than that
_AT_ONCE = 3
_TURN = 100.0  # seconds until it is let in: a test has minutes
_PATIENCE = 10.0  # and until what it wants then is free
_turn: int | None = None  # the lock that lets this process in, or -1 where it waited too long


def wait(size: int, cuda: Any, patience: float = _PATIENCE) -> None:
    """Until the device has so much to give, or for so long: other processes' tests end.

    What is not there then is told by the device, as it always was.
    """
    global _turn
    if size < _LARGE:
        return
    if _turn is None:
        _turn = _let_in(_folder(), time.monotonic() + _TURN)
        size = max(size, min(_PLENTY, cuda.mem_get_info()[1] // 2))
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        ours = cuda.memory_reserved() - cuda.memory_allocated()
        if cuda.mem_get_info()[0] + ours >= size + _GIB:
            return
        gc.collect()  # what our own earlier examples left in circles
        cuda.empty_cache()
        _a_moment()


def leave() -> None:
    """The next one may come: what was taken is given back."""
    global _turn
    if _turn is not None and _turn >= 0:
        os.close(_turn)
    _turn = None


def _folder() -> Path:
    """One for all that this user runs here, whatever checkout it is of."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace("/", "-")
    folder = Path(tempfile.gettempdir()) / f"unfix-room-{os.getuid()}-{cards}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _let_in(folder: Path, ends: float) -> int:
    while True:
        for number in range(_AT_ONCE):
            lock = os.open(folder / str(number), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return lock
        if time.monotonic() > ends:
            return -1  # in without a turn: better late and full than never
        _a_moment()


def _a_moment() -> None:
    time.sleep(0.05 + os.getpid() % 97 / 1000)  # not all at once, and nothing is drawn here
