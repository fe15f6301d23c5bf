"""Who writes to a store, so that another can tell whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def identify_this_process() -> str:
    """This process, so that another can tell whether it still lives: boot, pid, start, machine."""
    return f"{_read_boot_id()} {os.getpid()} {_read_start_time(os.getpid())} {socket.gethostname()}"


def is_process_alive(process: str) -> bool:
    """Nothing outlives a boot of its machine; of another machine's process nobody here knows."""
    boot, pid, start, *machine = process.split()
    if boot != _read_boot_id():
        return machine != [socket.gethostname()]
    return _read_start_time(int(pid)) == start


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def _read_start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "-"
