"""Counters in a memory-mapped file. A SIGKILL loses none, and so a server ends its workers."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_BYTES = 8  # of a counter


class MappedCounts:
    """The counters of one process, by number; the file has a new name."""

    def __init__(self, file: Path, size: int) -> None:
        with open(file, "x+b") as handle:
            # Allocate now: on a full disk the first count would end the process with SIGBUS.
            os.posix_fallocate(handle.fileno(), 0, _BYTES * size)
            self._counts = memoryview(mmap.mmap(handle.fileno(), _BYTES * size)).cast("Q")

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, number: int) -> int:
        return self._counts[number]

    def add(self, number: int, count: int = 1) -> None:
        """Add to a counter; the caller holds a lock."""
        self._counts[number] += count


def read_counts(file: Path, count: int) -> tuple[int, ...]:
    """Read the first counters of a file, of a process that may still run."""
    return struct.unpack(f"={count}Q", file.read_bytes()[: _BYTES * count])
