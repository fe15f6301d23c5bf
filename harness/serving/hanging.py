"""Where the ranks of a server stand that answers no more.

Python's own fault handler writes a process's stacks when it is aborted, whatever it waits for. All
processes are stopped first: a rank whose neighbour goes away is no longer where it hung.
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

from harness import processes

TITLE = re.compile(r"^sglang::scheduler_?(\S*)")
FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)')
THREAD = re.compile(r"^(Current thread|Thread) 0x")
PATIENCE = 3.0  # seconds for a process to say where it is
# Where whoever waits for the other ranks stands, and what only leads there.
COLLECTIVE = "torch/distributed/"
LOGGER = "c10d_logger.py"  # around each of torch's own, under a name that says nothing
PACKAGE = "/sglang/"
# Where a process waits for its card. What the card waits for was asked of it before: over NCCL a
# collective returns at once, and whoever needs an answer is the first to stand still.
CARD = "torch/cuda/"
TOGETHER = ("/parallel_state.py", "/communication_op.py", "/device_communicators/")
LOOP = "/managers/scheduler.py"  # which thread of a process is the rank's own
Frame = tuple[str, str, str]  # file, line, function


@dataclass(frozen=True)
class Rank:
    """A scheduler of the server, and where it is."""

    name: str
    where: str  # the innermost place in SGLang that is not the collective's own
    inside: str  # what it has called there, if that is none of SGLang's
    waits: bool  # for the other ranks: that is a collective
    card: bool = False  # it waits for its card

    def __str__(self) -> str:
        what = "waits for its card" if self.card else "waits" if self.waits else "is"
        how = f"{what} in {self.inside}, called" if self.inside else "is"
        return f"rank {self.name} {how} at {self.where}"


def ranks(keeper: int, log: Path) -> list[Rank]:
    """Where each stands; the server is of no use afterwards, and its keeper is to end it."""
    all_of_it = list(processes.below(keeper))
    found = sorted((name, pid) for pid in all_of_it if (name := _name(pid)))
    for pid in all_of_it:
        _send(pid, signal.SIGSTOP)
    return [_of(name, _said(pid, log)) for name, pid in found]


def _name(pid: int) -> str:
    """A rank's, as its title says; '' of what is none."""
    with contextlib.suppress(OSError):
        title = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
        if told := TITLE.match(title):
            return told[1] or "0"
    return ""


def _said(pid: int, log: Path) -> list[str]:
    """What a stopped process writes as it is aborted, and nothing of another one."""
    before = log.stat().st_size
    _send(pid, signal.SIGABRT)
    _send(pid, signal.SIGCONT)
    ends = time.monotonic() + PATIENCE
    while not _is_over(pid) and time.monotonic() < ends:
        time.sleep(0.02)
    with open(log, "rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace").splitlines()


def _is_over(pid: int) -> bool:
    """Gone, or dead and not yet fetched by its parent, which is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _of(name: str, said: list[str]) -> Rank:
    stacks = list(_stacks(said))
    mine = next((stack for stack in stacks if any(LOOP in file for file, _, _ in stack)), [])
    waits = any(COLLECTIVE in file for file, _, _ in mine)
    inside = list(itertools.takewhile(lambda frame: _is_inside(frame[0], waits), mine))
    calls = mine[len(inside) :]
    where = _place(calls[0]) if calls else "a place that it does not say"
    named = [one for file, _, one in reversed(inside) if not waits or _is_torchs(file)]
    card = not waits and any(CARD in file for file, _, _ in inside)
    return Rank(name, where, named[0] if named else "", waits, card)


def _is_torchs(file: str) -> bool:
    return COLLECTIVE in file and LOGGER not in file


def _is_inside(file: str, waits: bool) -> bool:
    return PACKAGE not in file or (waits and any(part in file for part in TOGETHER))


def _stacks(said: list[str]) -> Iterator[list[Frame]]:
    """Of each thread, from the innermost frame on."""
    stack: list[Frame] = []
    for line in said:
        if THREAD.match(line):
            yield stack
            stack = []
        elif told := FRAME.match(line):
            stack.append((told[1], told[2], told[3]))
    yield stack


def _place(frame: Frame) -> str:
    file, line, function = frame
    return f"sglang/{file.rpartition(PACKAGE)[2]}:{line}, {function}"
