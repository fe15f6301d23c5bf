"""The stacks of the ranks of a server that hangs.

Python's fault handler writes the stacks of an aborted process, wherever it waits. All processes are
stopped first, since a rank leaves the place where it hung when its peer ends.

Example: "rank TP1 waits in all_reduce, called at sglang/srt/layers/linear.py:212, forward".
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core import processes

SCHEDULER_TITLE = re.compile(r"^sglang::scheduler_?(\S*)")
FRAME_LINE = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)')
THREAD_LINE = re.compile(r"^(Current thread|Thread) 0x")
DUMP_TIMEOUT = 3.0  # seconds for a process to write its stacks
# Code in which a rank waits for the other ranks, and its wrappers.
COLLECTIVE_PATH = "torch/distributed/"
COLLECTIVE_LOGGER_PATH = "c10d_logger.py"  # wraps each of torch's collectives
SGLANG_PATH = "/sglang/"
# Code in which a process waits for its GPU. A collective over NCCL returns at once; the process
# blocks later, when it needs the result.
CUDA_PATH = "torch/cuda/"
COLLECTIVE_CALLER_PATHS = ("/parallel_state.py", "/communication_op.py", "/device_communicators/")
SCHEDULER_PATH = "/managers/scheduler.py"  # identifies the rank's own thread in a process
StackFrame = tuple[str, str, str]  # file, line, function


@dataclass(frozen=True)
class RankStack:
    """A scheduler of the server, and the place in its code."""

    name: str
    location: str  # the innermost line of SGLang outside of its collectives
    callee: str  # the function outside of SGLang that this line calls
    waits_for_ranks: bool  # the rank is in a collective
    waits_for_gpu: bool = False

    def __str__(self) -> str:
        what = (
            "waits for its GPU" if self.waits_for_gpu else "waits" if self.waits_for_ranks else "is"
        )
        how = f"{what} in {self.callee}, called" if self.callee else "is"
        return f"rank {self.name} {how} at {self.location}"


def dump_rank_stacks(supervisor_pid: int, log: Path) -> list[RankStack]:
    """Return the stack of each rank. This aborts the server's processes: stop it afterwards."""
    found = list_ranks(supervisor_pid)
    for pid in processes.iterate_descendants(supervisor_pid):
        _send_signal(pid, signal.SIGSTOP)
    return [_parse_rank_stack(name, _abort_and_read_stacks(pid, log)) for name, pid in found]


def list_ranks(supervisor_pid: int) -> list[tuple[str, int]]:
    """List the name and the pid of each rank of a server."""
    pids = processes.iterate_descendants(supervisor_pid)
    return sorted((name, pid) for pid in pids if (name := _read_rank_name(pid)))


def _read_rank_name(pid: int) -> str:
    """Read the rank in a process's title; empty for a process that is no scheduler."""
    with contextlib.suppress(OSError):
        title = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
        if match := SCHEDULER_TITLE.match(title):
            return match[1] or "0"
    return ""


def _abort_and_read_stacks(pid: int, log: Path) -> list[str]:
    """Abort a stopped process, and return the lines that it writes."""
    before = log.stat().st_size
    _send_signal(pid, signal.SIGABRT)
    _send_signal(pid, signal.SIGCONT)
    ends = time.monotonic() + DUMP_TIMEOUT
    while not _has_exited(pid) and time.monotonic() < ends:
        time.sleep(0.02)
    with open(log, "rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace").splitlines()


def _has_exited(pid: int) -> bool:
    """Return whether a process has ended; its stopped parent may not have reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _parse_rank_stack(name: str, lines: list[str]) -> RankStack:
    stacks = list(_split_threads(lines))
    mine = next(
        (stack for stack in stacks if any(SCHEDULER_PATH in file for file, _, _ in stack)), []
    )
    waits = any(COLLECTIVE_PATH in file for file, _, _ in mine)
    inside = list(itertools.takewhile(lambda frame: _is_below_caller(frame[0], waits), mine))
    calls = mine[len(inside) :]
    where = _format_frame(calls[0]) if calls else "an unknown line"
    named = [one for file, _, one in reversed(inside) if not waits or _is_torch_collective(file)]
    card = not waits and any(CUDA_PATH in file for file, _, _ in inside)
    return RankStack(name, where, named[0] if named else "", waits, card)


def _is_torch_collective(file: str) -> bool:
    return COLLECTIVE_PATH in file and COLLECTIVE_LOGGER_PATH not in file


def _is_below_caller(file: str, in_collective: bool) -> bool:
    return SGLANG_PATH not in file or (
        in_collective and any(part in file for part in COLLECTIVE_CALLER_PATHS)
    )


def _split_threads(lines: list[str]) -> Iterator[list[StackFrame]]:
    """Split the lines into the stack of each thread, the innermost frame first."""
    stack: list[StackFrame] = []
    for line in lines:
        if THREAD_LINE.match(line):
            yield stack
            stack = []
        elif match := FRAME_LINE.match(line):
            stack.append((match[1], match[2], match[3]))
    yield stack


def _format_frame(frame: StackFrame) -> str:
    file, line, function = frame
    return f"sglang/{file.rpartition(SGLANG_PATH)[2]}:{line}, {function}"
