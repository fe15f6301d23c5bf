"""Ports that no two servers of this machine are given at once, whoever started them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from pathlib import Path

from harness.errors import NotReady

FIRST, LAST = 21000, 31000  # below the range that the kernel gives to clients
_FOLDER = Path(tempfile.gettempdir()) / f"unfix-ports-{os.getuid()}"


class Reservation:
    """A port, held by a lock on a file for as long as this is open."""

    def __init__(self, port: int, lock: int) -> None:
        self.port = port
        self._lock = lock

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)


def reserve(count: int = 1) -> list[Reservation]:
    found: list[Reservation] = []
    _FOLDER.mkdir(mode=0o700, exist_ok=True)
    start = FIRST + (os.getpid() * 37) % (LAST - FIRST)
    for step in range(LAST - FIRST):
        port = FIRST + (start - FIRST + step) % (LAST - FIRST)
        lock = os.open(_FOLDER / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        if not free(port):
            os.close(lock)
            continue
        found.append(Reservation(port, lock))
        if len(found) == count:
            return found
    for one in found:
        one.close()
    raise NotReady(f"no {count} free ports between {FIRST} and {LAST}")


def free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
