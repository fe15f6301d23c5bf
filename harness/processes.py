"""What Linux knows of a process and those below it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_libc = ctypes.CDLL(None, use_errno=True)
TOO_MANY = 71  # the exit code of a child beyond the forks that are allowed
_PAGE = os.sysconf("SC_PAGE_SIZE")


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends."""
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of whatever is left of the processes below."""
    _libc.prctl(_ADOPT_ORPHANS, 1)


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def below(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from below(child)


def resident(pid: int) -> int:
    """Bytes in memory; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def owned(pid: int) -> int:
    """Bytes in memory that no other process shares: exact, and slow."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                total += int(line.split()[1]) << 10
    return total


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def said_last(log: Path, most: int) -> str:
    """The end of what a process wrote, or nothing if it never wrote."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def end_all_below(pid: int) -> int:
    """Kill what is below this process, which adopts orphans; gives how many there were."""
    ended = 0
    while found := list(below(pid)):
        for child in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
                ended += 1
    return ended


def allow_forks(many: int) -> None:
    """Let this process and those below it fork so often in all; each child after that ends.

    A child that goes on where its parent does, in a loop that forks, would fill the machine faster
    than anybody could end them. The count is shared memory; losing one of a race is no matter.
    """
    count = mmap.mmap(-1, 4)

    def born() -> None:
        forks = int.from_bytes(count[:4], "little") + 1
        count[:4] = forks.to_bytes(4, "little")
        if forks > many:
            os._exit(TOO_MANY)

    os.register_at_fork(after_in_child=born)


def killed_for_memory() -> int:
    """How many processes the kernel has killed so far because memory ran out."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def offer_to_the_kernel() -> None:
    """Be the first to go when memory runs out, before whoever looks after this process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
