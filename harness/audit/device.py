"""Findings run on a GPU: whole launches in real memory, with checks compiled in.

Findings come in with their launches, one below the threshold and at it; what each showed goes out,
a line each. This process never uses CUDA: a kernel's findings have a fork of their own, so that one
that loses the device, or never ends, costs no other anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pickle
import selectors
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from harness import processes
from harness.audit import loading
from harness.audit.findings import CONFIRMED, Argument, Finding, Trial
from harness.audit.trials import PASSES, TYPES, WRAPS, fitting, given
from harness.compiled import CHECKS, LINE, triton_side
from harness.compiled.launching import REPORTS, Launcher
from harness.patching import kernels as patching

_WHERE = "cuda"
_SECONDS = 40  # for a kernel to be compiled, or for one launch of it
_BESIDE = 1 << 30  # bytes of the device that each process takes besides tensors
_PROGRAMS = (1 << 31) - 1  # of a grid: Triton's launcher counts no further
_NUMBER = 0xFFFF  # of a report's word: the wrap, if it is one
Group = list[tuple[int, Finding]]


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    processes.die_with(os.getppid())
    asked = pickle.load(sys.stdin.buffer)
    answers = os.dup(1)
    os.dup2(2, 1)  # Triton prints what it likes
    groups: dict[tuple[str, str], Group] = {}
    for number, finding in asked["findings"]:
        groups.setdefault((finding.module, finding.kernel), []).append((number, finding))
    with tempfile.NamedTemporaryFile() as turn, open(answers, "w", buffering=1) as told:
        crew = _Crew(asked["place"], asked["jobs"], Path(turn.name), told)
        crew.work(list(groups.values()), time.monotonic() + asked["seconds"])


@dataclass(slots=True)
class _Child:
    pid: int
    left: Group
    heard: IO[str] = field(repr=False)


class _Crew:
    """Forks, so many at a time, and what they say."""

    def __init__(self, place: Path, jobs: int, turn: Path, told: IO[str]) -> None:
        self._place, self._jobs, self._turn, self._told = place, jobs, turn, told
        self._selector = selectors.DefaultSelector()

    def work(self, waiting: list[Group], ends: float) -> None:
        waiting.reverse()
        while waiting or self._selector.get_map():
            while waiting and len(self._selector.get_map()) < self._jobs:
                self._start(waiting.pop())
            for key, _ in self._selector.select(max(0.0, ends - time.monotonic())):
                left = self._hear(key.data)
                waiting += [left] if left else []
            if time.monotonic() > ends:
                break
        for key in list(self._selector.get_map().values()):
            os.kill(key.data.pid, signal.SIGKILL)
            self._over(key.data.left)
            self._ended(key.data)
        for group in waiting:
            self._over(group)

    def _over(self, group: Group) -> None:
        for number, _ in group:
            self._say(number, "there was no time left for it")

    def _say(self, number: int, words: str) -> None:
        self._told.write(json.dumps([number, words]) + "\n")

    def _start(self, group: Group) -> None:
        read, write = os.pipe()
        own, pid = os.getpid(), os.fork()
        if not pid:
            processes.die_with(own)
            os.close(read)
            code = 1
            try:
                with open(write, "w", buffering=1) as out:
                    _tell(group, self._place, self._jobs, self._turn, out)
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        heard = open(read)  # noqa: SIM115 - until the fork has ended
        self._selector.register(heard, selectors.EVENT_READ, _Child(pid, list(group), heard))

    def _hear(self, child: _Child) -> Group:
        """An answer, or the end; then what is left to run."""
        line = child.heard.readline()
        if line:
            number, _ = child.left.pop(0)
            self._say(number, json.loads(line))
            return []
        status = self._ended(child)
        if status and child.left:
            number, _ = child.left.pop(0)
            slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            why = f"a step takes more than {_SECONDS} s" if slow else "it ends the process"
            self._say(number, why)
        return child.left

    def _ended(self, child: _Child) -> int:
        self._selector.unregister(child.heard)
        child.heard.close()
        return os.waitpid(child.pid, 0)[1]


# In a fork


def _tell(group: Group, place: Path, jobs: int, turn: Path, out: IO[str]) -> None:
    """Of each finding what its launches showed, until one loses the device."""
    running: _Running | None = None
    for _, finding in group:
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            running = running or _Running(place, finding, jobs, turn)
            said = running.said_of(finding)
        except Exception as error:
            words = str(error).strip().splitlines()
            said = f"{type(error).__name__}: {words[-1] if words else ''}"[:160]
        out.write(json.dumps(said) + "\n")
        if _is_lost(said) or (running is not None and running.is_lost):
            return


class _Running:
    """One kernel on this GPU."""

    def __init__(self, place: Path, finding: Finding, jobs: int, turn: Path) -> None:
        self._turn = turn
        self._launcher = Launcher((*CHECKS, LINE), strict=True)
        self._launcher.start()
        kernel = loading.World(place).kernel(finding.module, finding.kernel)
        self._kernel = _unspecialised(kernel)
        self._memory = torch.cuda.mem_get_info()[1] - jobs * _BESIDE
        self.is_lost = False

    def said_of(self, finding: Finding) -> str:
        """That it is confirmed, or why not."""
        below, at = finding.trials
        needed = sum(map(_bytes, at.arguments))
        if needed > self._memory:
            return f"its tensors take {needed / 2**30:,.0f} GiB"
        if (programs := math.prod(at.grid)) > _PROGRAMS:
            return f"its grid has {programs:,} programs"
        self._launcher.line = finding.line
        for launch in (below, at):  # with no programs it is only compiled
            self._kernel[(0, 0, 0)](**given(launch, _nothing))
        if why := self._launcher.refuses(self._kernel):
            return f"no checks can be compiled into it: {why}"
        with self._real(at, needed) as tensors:
            first = self._outcome(below, tensors, finding)
            if first != PASSES:
                return f"one below it {first}"
            second = self._outcome(at, tensors, finding)
        return f"at it {second}" if second == PASSES else CONFIRMED

    @contextlib.contextmanager
    def _real(self, launch: Trial, needed: int) -> Iterator[dict[str, torch.Tensor]]:
        """The launch's tensors, as soon as the other processes leave room for them."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        with self._turn.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            while torch.cuda.mem_get_info()[0] < needed + _BESIDE // 4:
                time.sleep(0.02)
            tensors = {
                one.name: torch.empty(_even(one), dtype=_kind(one), device=_WHERE)
                for one in launch.arguments
                if one.kind.startswith("*")
            }
        try:
            yield tensors
        finally:
            tensors.clear()
            if not self.is_lost:
                torch.cuda.empty_cache()

    def _outcome(self, launch: Trial, tensors: dict[str, torch.Tensor], finding: Finding) -> str:
        for one in launch.arguments:
            if one.kind.startswith("*"):
                _fill(tensors[one.name], one)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            self._kernel[launch.grid](**given(launch, lambda one: tensors[one.name]))
            torch.cuda.synchronize()
        except RuntimeError as error:
            if not _is_lost(str(error)):
                raise
            self.is_lost = True
            return "loses the device"
        wrapped = [
            triton_side.sites(note.compiled, "wraps")[number - 1].source
            for record, note in REPORTS.told()
            if (number := record.word & _NUMBER)
        ]
        REPORTS.forget()
        here = Path(finding.file).name, finding.line
        return WRAPS if here in [(Path(one.file).name, one.line) for one in wrapped] else PASSES


def _is_lost(words: str) -> bool:
    return "CUDA error" in words or "Triton Error [CUDA]" in words


def _unspecialised(kernel: Any) -> Any:
    """Compiled once for all numbers: whether 16 divides one changes no address."""
    names = [one.name for one in kernel.params if not one.is_constexpr]
    return patching.another(kernel, kernel.fn, names, names)


def _kind(one: Argument) -> torch.dtype:
    return TYPES[one.kind[1:]]


def _even(one: Argument) -> int:
    return one.elements + one.elements % 2


def _bytes(one: Argument) -> int:
    return _even(one) * _kind(one).itemsize if one.kind.startswith("*") else 0


def _nothing(one: Argument) -> torch.Tensor:
    return torch.empty(16, dtype=_kind(one), device=_WHERE)


def _fill(tensor: torch.Tensor, one: Argument) -> None:
    if one.holds is None:
        tensor.view(torch.uint8).zero_()
        return
    both = [fitting(number, tensor.dtype) for number in one.holds]
    tensor.view(-1, 2).copy_(torch.tensor(both, dtype=tensor.dtype))


if __name__ == "__main__":
    main()
