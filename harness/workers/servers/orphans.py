"""Kills the processes of a server whose supervisor was killed.

These processes have no common parent any more. A mark in their environment identifies them, or the
server's log that they write to; their descendants belong to them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from harness.core import processes

MARK_VARIABLE = "UNFIX_SERVER"
KILL_TIMEOUT = 10.0  # seconds for killed processes to end


def kill_orphans(mark: str, log: Path) -> int:
    """Kill a server's orphans until none is left; return their number."""
    killed: set[int] = set()
    ends = time.monotonic() + KILL_TIMEOUT
    while (orphans := set(find_orphans(mark, log))) and time.monotonic() < ends:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= orphans
        time.sleep(0.02)
    return len(killed)


def find_orphans(mark: str, log: Path) -> Iterator[int]:
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    place = str(log.resolve())
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid != os.getpid() and (_is_marked(folder, wanted) or _writes_to_log(folder, place)):
            yield from processes.iterate_descendants(pid)
            yield pid


def _is_marked(folder: Path, entry: bytes) -> bool:
    try:
        return entry in (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False


def _writes_to_log(folder: Path, log: str) -> bool:
    """Return whether a process writes to the log; `tail -f` only reads it and is not ours."""
    with contextlib.suppress(OSError):
        for handle in os.listdir(folder / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "fd" / handle).removesuffix(" (deleted)") != log:
                    continue
                flags = (folder / "fdinfo" / handle).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    return False
