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
_SMALLEST_ADMITTED = _GIB  # what is smaller finds its room
_FREE_BYTES_NEEDED = 48 * _GIB  # that has to be free for one more, as most need no more than that
_MAX_ADMITTED = 3
_ADMISSION_SECONDS = 100.0  # seconds until it is let in: a test has minutes
_MEMORY_SECONDS = 10.0  # and until what it wants then is free
_admission_lock: int | None = (
    None  # the lock that lets this process in, or -1 where it waited too long
)


def wait_for_memory(size: int, cuda: Any, patience: float = _MEMORY_SECONDS) -> None:
    """Until the device has so much to give, or for so long: other processes' tests end.

    What is not there then is told by the device, as it always was.
    """
    global _admission_lock
    if size < _SMALLEST_ADMITTED:
        return
    if _admission_lock is None:
        _admission_lock = _acquire_admission(_lock_folder(), time.monotonic() + _ADMISSION_SECONDS)
        size = max(size, min(_FREE_BYTES_NEEDED, cuda.mem_get_info()[1] // 2))
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        ours = cuda.memory_reserved() - cuda.memory_allocated()
        if cuda.mem_get_info()[0] + ours >= size + _GIB:
            return
        gc.collect()  # what our own earlier examples left in circles
        cuda.empty_cache()
        _sleep_briefly()


def release_admission() -> None:
    """The next one may come: what was taken is given back."""
    global _admission_lock
    if _admission_lock is not None and _admission_lock >= 0:
        os.close(_admission_lock)
    _admission_lock = None


def _lock_folder() -> Path:
    """One for all that this user runs here, whatever checkout it is of."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace("/", "-")
    folder = Path(tempfile.gettempdir()) / f"unfix-room-{os.getuid()}-{cards}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _acquire_admission(folder: Path, deadline: float) -> int:
    while True:
        for number in range(_MAX_ADMITTED):
            lock = os.open(folder / str(number), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return lock
        if time.monotonic() > deadline:
            return -1  # in without a turn: better late and full than never
        _sleep_briefly()


def _sleep_briefly() -> None:
    time.sleep(0.05 + os.getpid() % 97 / 1000)  # not all at once, and nothing is drawn here
