"""What Linux knows of a process and those below it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # PR_SET_PDEATHSIG
_PR_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_libc = ctypes.CDLL(None, use_errno=True)
TOO_MANY_FORKS_EXIT_CODE = 71  # the exit code of a child beyond the forks that are allowed
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before we asked
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of whatever is left of the processes below."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def list_children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def iterate_descendants(pid: int) -> Iterator[int]:
    for child in list_children(pid):
        yield child
        yield from iterate_descendants(child)


def read_resident_bytes(pid: int) -> int:
    """Bytes in memory; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def read_private_bytes(pid: int) -> int:
    """Bytes in memory that no other process shares: exact, and slow."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                total += int(line.split()[1]) << 10
    return total


def get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def read_log_tail(log: Path, max_bytes: int) -> str:
    """The end of what a process wrote, or nothing if it never wrote."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - max_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def kill_descendants(pid: int) -> int:
    """Kill what is below this process, which adopts orphans; gives how many there were."""
    ended = 0
    while found := list(iterate_descendants(pid)):
        for child in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in list_children(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
                ended += 1
    return ended


def limit_forks(max_forks: int) -> None:
    """Let this process and those below it fork so often in all; each child after that ends.

    A child that goes on where its parent does, in a loop that forks, would fill the machine faster
    than anybody could end them. The count is shared memory; losing one of a race is no matter.
    """
    count = mmap.mmap(-1, 4)

    def born() -> None:
        forks = int.from_bytes(count[:4], "little") + 1
        count[:4] = forks.to_bytes(4, "little")
        if forks > max_forks:
            os._exit(TOO_MANY_FORKS_EXIT_CODE)

    os.register_at_fork(after_in_child=born)


def count_oom_kills() -> int:
    """How many processes the kernel has killed so far because memory ran out."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def volunteer_for_oom_kill() -> None:
    """Be the first to go when memory runs out, before whoever looks after this process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
