"""The identity of the process that writes a run, by which others see whether it is alive."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def identify_this_process() -> str:
    """Return boot id, process id, start time and machine as one string."""
    return f"{_read_boot_id()} {os.getpid()} {_read_start_time(os.getpid())} {socket.gethostname()}"


def is_process_alive(process: str) -> bool:
    """Return whether a process is alive; True for another machine's, which cannot be checked."""
    boot, pid, start, *machine = process.split()
    if boot != _read_boot_id():  # this machine was booted since, or it is another machine
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
