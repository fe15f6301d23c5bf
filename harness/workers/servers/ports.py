"""Ports that no two servers of this machine are given at once, whoever started them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from harness.core.errors import NotReadyError

FIRST_PORT, LAST_PORT = 21000, 31000  # below the range that the kernel gives to clients


class PortReservation:
    """A port, held for as long as this is open, and no longer than this process lives."""

    def __init__(self, port: int, lock_socket: socket.socket) -> None:
        self.port = port
        self._lock_socket = lock_socket

    def close(self) -> None:
        self._lock_socket.close()


def reserve_ports(count: int = 1, offsets: Sequence[int] = ()) -> list[PortReservation]:
    """Ports that nobody uses, and that nobody else who asks here is given meanwhile.

    `beside`: so far from the first one there are others, which come last.
    """
    found: list[PortReservation] = []
    others: list[PortReservation] = []
    start = (os.getpid() * 37) % (LAST_PORT - FIRST_PORT)
    for step in range(LAST_PORT - FIRST_PORT):
        port = FIRST_PORT + (start + step) % (LAST_PORT - FIRST_PORT)
        held = _reserve_all([port] if found else [port, *(port + far for far in offsets)])
        found += held[:1]
        others += held[1:]
        if len(found) == count:
            return found + others
    for one in found + others:
        one.close()
    raise NotReadyError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT}")


def _reserve_all(ports: Sequence[int]) -> list[PortReservation]:
    """All of these, or none."""
    found: list[PortReservation] = []
    for port in ports:
        held = _lock_port(port)
        if held is not None:
            found.append(PortReservation(port, held))
        if held is None or not is_port_free(port):
            for one in found:
                one.close()
            return []
    return found


def _lock_port(port: int) -> socket.socket | None:
    """A name in the kernel, where the ports are: one holder, all users, gone with its process."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0unfix-port-{port}")
    except OSError:
        held.close()
        return None
    return held


def is_port_free(port: int) -> bool:
    """Whether a server could have it, on whichever of the machine's addresses."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
