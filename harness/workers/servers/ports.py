"""The reservation of ports, so that no two servers on this machine get the same one."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from harness.core.errors import NotReadyError

FIRST_PORT, LAST_PORT = 21000, 31000  # below the kernel's range for clients


class PortReservation:
    """A port that stays reserved until `close`, or until this process ends."""

    def __init__(self, port: int, lock_socket: socket.socket) -> None:
        self.port = port
        self._lock_socket = lock_socket

    def close(self) -> None:
        self._lock_socket.close()


def reserve_ports(count: int = 1, offsets: Sequence[int] = ()) -> list[PortReservation]:
    """Reserve free ports. The ports at these offsets from the first one come last."""
    found: list[PortReservation] = []
    others: list[PortReservation] = []
    start = (os.getpid() * 37) % (LAST_PORT - FIRST_PORT)
    for step in range(LAST_PORT - FIRST_PORT):
        port = FIRST_PORT + (start + step) % (LAST_PORT - FIRST_PORT)
        lock_socket = _reserve_all([port] if found else [port, *(port + far for far in offsets)])
        found += lock_socket[:1]
        others += lock_socket[1:]
        if len(found) == count:
            return found + others
    for one in found + others:
        one.close()
    raise NotReadyError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT}")


def _reserve_all(ports: Sequence[int]) -> list[PortReservation]:
    """Reserve all of these ports, or none."""
    found: list[PortReservation] = []
    for port in ports:
        lock_socket = _lock_port(port)
        if lock_socket is not None:
            found.append(PortReservation(port, lock_socket))
        if lock_socket is None or not is_port_free(port):
            for one in found:
                one.close()
            return []
    return found


def _lock_port(port: int) -> socket.socket | None:
    """Bind an abstract socket as the port's lock, exclusive among all users until exit."""
    lock_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock_socket.bind(f"\0unfix-port-{port}")
    except OSError:
        lock_socket.close()
        return None
    return lock_socket


def is_port_free(port: int) -> bool:
    """Return whether the port is free on every address of this machine."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
