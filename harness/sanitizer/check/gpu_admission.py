"""Admission of tests that need gigabytes of GPU memory: at most three at a time, in all processes.

If all ran at once, each would hold a part of the memory it needs and wait for the rest: a deadlock.
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
_SMALLEST_ADMITTED = _GIB  # smaller requests are not limited
_FREE_BYTES_NEEDED = 48 * _GIB  # required to admit one more test; most need less
_MAX_ADMITTED = 3
_ADMISSION_SECONDS = 100.0  # limit of the wait for admission
_MEMORY_SECONDS = 10.0  # limit of the wait for free memory
_admission_lock: int | None = None  # a file descriptor; -1 after waiting too long


def wait_for_memory(size: int, cuda: Any, patience: float = _MEMORY_SECONDS) -> None:
    """Wait until the device has `size` bytes free, while tests of other processes end.

    After `patience` seconds it returns all the same, and the allocation fails as it would have.
    """
    global _admission_lock
    if size < _SMALLEST_ADMITTED:
        return
    if _admission_lock is None:
        _admission_lock = _acquire_admission(_lock_folder(), time.monotonic() + _ADMISSION_SECONDS)
        size = max(size, min(_FREE_BYTES_NEEDED, cuda.mem_get_info()[1] // 2))
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        cached = cuda.memory_reserved() - cuda.memory_allocated()
        if cuda.mem_get_info()[0] + cached >= size + _GIB:
            return
        gc.collect()  # reference cycles of earlier examples
        cuda.empty_cache()
        _sleep_briefly()


def release_admission() -> None:
    """Let the next test in: this one has freed its memory."""
    global _admission_lock
    if _admission_lock is not None and _admission_lock >= 0:
        os.close(_admission_lock)
    _admission_lock = None


def _lock_folder() -> Path:
    """Return one folder for all processes of this user on these cards, from any checkout."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace("/", "-")
    folder = Path(tempfile.gettempdir()) / f"unfix-admission-{os.getuid()}-{cards}"
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
            return -1  # run without a lock
        _sleep_briefly()


def _sleep_briefly() -> None:
    """Processes wake at different times, without randomness."""
    time.sleep(0.05 + os.getpid() % 97 / 1000)
