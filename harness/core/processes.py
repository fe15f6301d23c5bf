"""Processes as Linux shows them: parents, descendants, memory, limits, the OOM killer."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # PR_SET_PDEATHSIG
_PR_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_libc = ctypes.CDLL(None, use_errno=True)
TOO_MANY_FORKS_EXIT_CODE = 71  # exit code of a child beyond the limit of forks
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before this call
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the subreaper: the new parent of every orphan among its descendants."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def list_children(pid: int) -> list[int]:
    """List the children of all threads; supervisors ask often, and a server has many threads."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children += map(int, _read_bytes(f"/proc/{pid}/task/{task}/children").split())
    return children


def _read_bytes(file: str) -> bytes:
    """Read a file of /proc, in a fifth of the time that `Path.read_text` takes."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def iterate_descendants(pid: int, spared: Collection[int] = ()) -> Iterator[int]:
    """Yield all descendants but the spared children, with all of theirs."""
    for child in list_children(pid):
        if child not in spared:
            yield child
            yield from iterate_descendants(child)


def read_resident_bytes(pid: int) -> int:
    """Read the resident set in bytes; 0 for a process that has ended."""
    try:
        return int(_read_bytes(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def read_private_bytes(pid: int) -> int:
    """Read the bytes of memory that no other process shares; exact, but slow."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                total += int(line.split()[1]) << 10
    return total


def read_available_bytes() -> int:
    """Read how much memory the machine can give without swapping; 0 if it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def read_log_tail(log: Path, max_bytes: int) -> str:
    """Read the end of a log; empty if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - max_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def kill_descendants(pid: int, spared: Collection[int] = ()) -> int:
    """Kill and reap every descendant of this subreaper; return their number.

    `spared`: children that stay, with all of theirs.
    """
    killed = 0
    while children := [child for child in list_children(pid) if child not in spared]:
        for descendant in list(iterate_descendants(pid, spared)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
                killed += 1
    return killed


_fork_counters: dict[int, mmap.mmap] = {}  # by the process that has set the limit


def limit_forks(max_forks: int) -> None:
    """Limit the forks of this process and its descendants from now on, in all; others exit.

    A child that runs into its parent's loop of forks would fill the machine faster than any
    supervisor could kill. The counter is shared memory; an update lost to a race is harmless.
    """
    if (counter := _fork_counters.get(os.getpid())) is None:
        counter = _fork_counters[os.getpid()] = mmap.mmap(-1, 8)

        def count_fork() -> None:
            forks = int.from_bytes(counter[:4], "little") + 1
            counter[:4] = forks.to_bytes(4, "little")
            if forks > int.from_bytes(counter[4:], "little"):
                os._exit(TOO_MANY_FORKS_EXIT_CODE)

        os.register_at_fork(after_in_child=count_fork)
    counter[:] = bytes(4) + max_forks.to_bytes(4, "little")


def count_oom_kills() -> int:
    """Count the processes that the kernel has killed for lack of memory since boot."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def volunteer_for_oom_kill() -> None:
    """Make the kernel kill this process first when memory runs out, before the supervisor."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
