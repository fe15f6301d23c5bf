"""Who writes to a store, so that another can tell whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def me() -> str:
    """This process, so that another can tell whether it still lives: boot, pid, start, machine."""
    return f"{_boot()} {os.getpid()} {_start_of(os.getpid())} {socket.gethostname()}"


def alive(process: str) -> bool:
    """Nothing outlives a boot of its machine; of another machine's process nobody here knows."""
    boot, pid, start, *machine = process.split()
    if boot != _boot():
        return machine != [socket.gethostname()]
    return _start_of(int(pid)) == start


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def _start_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "-"
