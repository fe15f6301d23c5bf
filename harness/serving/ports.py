"""Ports that no two servers of this machine are given at once, whoever started them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from harness.errors import NotReady

FIRST, LAST = 21000, 31000  # below the range that the kernel gives to clients


class Reservation:
    """A port, held for as long as this is open, and no longer than this process lives."""

    def __init__(self, port: int, held: socket.socket) -> None:
        self.port = port
        self._held = held

    def close(self) -> None:
        self._held.close()


def reserve(count: int = 1, beside: Sequence[int] = ()) -> list[Reservation]:
    """Ports that nobody uses, and that nobody else who asks here is given meanwhile.

    `beside`: so far from the first one there are others, which come last.
    """
    found: list[Reservation] = []
    others: list[Reservation] = []
    start = (os.getpid() * 37) % (LAST - FIRST)
    for step in range(LAST - FIRST):
        port = FIRST + (start + step) % (LAST - FIRST)
        held = _held([port] if found else [port, *(port + far for far in beside)])
        found += held[:1]
        others += held[1:]
        if len(found) == count:
            return found + others
    for one in found + others:
        one.close()
    raise NotReady(f"no {count} free ports between {FIRST} and {LAST}")


def _held(ports: Sequence[int]) -> list[Reservation]:
    """All of these, or none."""
    found: list[Reservation] = []
    for port in ports:
        held = _hold(port)
        if held is not None:
            found.append(Reservation(port, held))
        if held is None or not free(port):
            for one in found:
                one.close()
            return []
    return found


def _hold(port: int) -> socket.socket | None:
    """A name in the kernel, where the ports are: one holder, all users, gone with its process."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0unfix-port-{port}")
    except OSError:
        held.close()
        return None
    return held


def free(port: int) -> bool:
    """Whether a server could have it, on whichever of the machine's addresses."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
