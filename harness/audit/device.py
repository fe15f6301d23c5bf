"""Findings run on a GPU: launches in real memory, with checks compiled in.

Findings come in with their launches, one below the threshold and at it; what each showed goes out,
a line each. This process never uses CUDA: forks do, which compile side by side and launch one after
the other. One that loses the device, or never ends, costs its finding alone: another fork goes on.
A launch that is too large or too slow as a whole is made of some programs of the grid.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from harness import processes
from harness.audit import loading
from harness.audit.findings import AROUND, CONFIRMED, NO_TIME, PASSED, Argument, Finding, Trial
from harness.audit.trials import PASSES, TYPES, WRAPS, around, fitting, given
from harness.compiled import CHECKS, LINE, PART, triton_side
from harness.compiled.launching import REPORTS, Launcher
from harness.compiled.part import Part
from harness.lines import Line
from harness.patching import kernels as patching

_WHERE = "cuda"
_A_LAUNCH, _ITS_COMPILATION = "a launch", "its compilation"
# Seconds, at first, as others wait meanwhile; and once nothing else is left to run.
_SECONDS = {_ITS_COMPILATION: (30, 240), _A_LAUNCH: (2, 40)}
_ENDS_IT = "it ends the process"
_BESIDE = 1 << 30  # bytes of the device that each process takes besides tensors
_PROGRAMS = (1 << 31) - 1  # of a grid: Triton's launcher counts no further
_NUMBER = 0xFFFF  # of a report's word: the wrap, if it is one
Begins = Callable[[str], None]  # a step


@dataclass(frozen=True, slots=True)
class Order:
    """What a fork is to run: findings by their numbers, of a kernel that is compiled once."""

    numbers: tuple[int, ...]
    slow: str = ""  # the step that it was ended in before


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    processes.die_with(os.getppid())
    asked = pickle.load(sys.stdin.buffer)
    answers = os.dup(1)
    os.dup2(2, 1)  # Triton prints what it likes
    findings = dict(asked["findings"])
    groups: dict[Any, list[int]] = {}
    for number, finding in findings.items():
        groups.setdefault(_compiled_as(finding), []).append(number)
    with tempfile.NamedTemporaryFile() as turn, open(answers, "w", buffering=1) as told:
        card = _Card(asked["place"], asked["jobs"], Path(turn.name))
        crew = _Crew(card, findings, asked["jobs"], told)
        crew.work(groups.values(), time.monotonic() + asked["seconds"])


def _compiled_as(finding: Finding) -> tuple[str, ...]:
    given = finding.trials[-1].arguments
    constants = (f"{one.name}={one.value!r}" for one in given if one.kind == "constexpr")
    return finding.module, finding.kernel, *constants


@dataclass(slots=True)
class _Child:
    pid: int
    line: Line
    left: list[int] = field(default_factory=list)
    slow: str = ""  # as its order has it
    step: str = ""  # what it has begun

    def give(self, order: Order) -> None:
        self.left, self.slow, self.step = list(order.numbers), order.slow, ""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is heard next
            self.line.say(json.dumps([order.numbers, order.slow]).encode())

    @property
    def order(self) -> Order:
        """What is left of it."""
        return Order(tuple(self.left), self.slow)


class _Crew:
    """Forks, so many at a time, and what they say."""

    def __init__(
        self, card: _Card, findings: Mapping[int, Finding], jobs: int, told: IO[str]
    ) -> None:
        self._card, self._findings, self._jobs, self._told = card, findings, jobs, told
        self._selector = selectors.DefaultSelector()
        self._waiting: deque[Order] = deque()
        self._late: deque[Order] = deque()  # what took longer than others can wait

    def work(self, groups: Iterable[list[int]], ends: float) -> None:
        self._waiting += (Order(tuple(group)) for group in groups)
        while time.monotonic() < ends and self._hand_out():
            for key, _ in self._selector.select(max(0.0, ends - time.monotonic())):
                self._hear(key.data)
        for child in self._children():
            os.kill(child.pid, signal.SIGKILL)
            self._waiting.append(child.order)
            self._ended(child)
        for order in (*self._waiting, *self._late):
            words = f"{_too_long(order.slow, False)}, and {NO_TIME}" if order.slow else NO_TIME
            self._say(order.numbers, words)

    def _hand_out(self) -> bool:
        """Work for every fork that has none; whether any is at work."""
        idle = [one for one in self._children() if not one.left]
        while queue := self._waiting or self._late:
            if not idle and len(self._children()) == self._jobs:
                return True
            (idle.pop() if idle else self._started()).give(queue.popleft())
        return any(one.left for one in self._children())

    def _children(self) -> list[_Child]:
        return [key.data for key in self._selector.get_map().values()]

    def _say(self, numbers: Iterable[int], words: str) -> None:
        for number in numbers:
            self._told.write(json.dumps([number, words]) + "\n")

    def _started(self) -> _Child:
        heard, says = os.pipe()
        hears, said = os.pipe()
        own, pid = os.getpid(), os.fork()
        if not pid:
            processes.die_with(own)
            os.setpgid(0, 0)
            os.close(heard)
            os.close(said)
            code = 1
            try:
                _serve(self._card, self._findings, Line(hears, says))
                code = 0
            finally:
                os._exit(code)
        os.close(says)
        os.close(hears)
        child = _Child(pid, Line(heard, said))
        self._selector.register(heard, selectors.EVENT_READ, child)
        return child

    def _hear(self, child: _Child) -> None:
        """Answers, what is begun, or the end; then what is left waits for another fork."""
        for line in child.line.heard():
            match json.loads(line):
                case {"step": str(step)}:
                    child.step = step
                case {"said": str(words)}:
                    self._say([child.left.pop(0)], words)
        if not child.line.over:
            return
        status = self._ended(child)
        if status and child.left:
            self._blame(child, os.waitstatus_to_exitcode(status))
        if child.left:
            self._waiting.appendleft(child.order)

    def _blame(self, child: _Child, code: int) -> None:
        """What it ended in is not run again; what it was too slow with, once, later."""
        slow = code == -signal.SIGALRM
        alike = len(child.left) if slow and child.step == _ITS_COMPILATION else 1
        ended, child.left = child.left[:alike], child.left[alike:]
        if slow and child.step != child.slow != _A_LAUNCH:
            self._late.append(Order(tuple(ended), child.step))
        else:
            self._say(ended, _too_long(child.step, True) if slow else _ENDS_IT)

    def _ended(self, child: _Child) -> int:
        self._selector.unregister(child.line.read_end)
        child.line.close()
        status = os.waitpid(child.pid, 0)[1]
        with contextlib.suppress(ProcessLookupError):  # an assembler may go on
            os.killpg(child.pid, signal.SIGKILL)
        return status


def _too_long(step: str, patient: bool) -> str:
    return f"{step} takes more than {_SECONDS[step][patient]} s"


# In a fork


def _serve(card: _Card, findings: Mapping[int, Finding], line: Line) -> None:
    """Of each finding what its launches showed, until one loses the device."""
    while not line.over:
        for numbers, slow in map(json.loads, line.heard()):
            begins = functools.partial(_begins, line, bool(slow))
            for number in numbers:
                said = _answer(card, findings[number], begins, whole=slow != _A_LAUNCH)
                signal.setitimer(signal.ITIMER_REAL, 0)
                line.say(json.dumps({"said": said}).encode())
                if card.is_lost or _is_lost(said):
                    return


def _begins(line: Line, patient: bool, step: str) -> None:
    line.say(json.dumps({"step": step}).encode())
    signal.setitimer(signal.ITIMER_REAL, _SECONDS[step][patient])


def _answer(card: _Card, finding: Finding, begins: Begins, whole: bool) -> str:
    try:
        return card.said_of(finding, begins, whole)
    except Exception as error:
        words = str(error).strip().splitlines()
        return f"{type(error).__name__}: {words[-1] if words else ''}"[:160]


class _Card:
    """This GPU, as a fork uses it."""

    def __init__(self, place: Path, jobs: int, turn: Path) -> None:
        self._place, self._jobs, self._turn = place, jobs, turn
        self._kernels: dict[tuple[str, str], Any] = {}
        self.is_lost = False  # or who knows what is still held

    @functools.cached_property
    def _launcher(self) -> Launcher:
        launcher = Launcher((*CHECKS, LINE, PART), strict=True)
        launcher.start()
        return launcher

    @functools.cached_property
    def _world(self) -> loading.World:
        return loading.World(self._place)

    @functools.cached_property
    def _memory(self) -> int:
        return int(torch.cuda.mem_get_info()[1]) - self._jobs * _BESIDE

    def said_of(self, finding: Finding, begins: Begins, whole: bool) -> str:
        """That it is confirmed, or why not; `whole`: by all programs of the launch."""
        below, at = finding.trials
        needed = sum(map(_bytes, at.arguments))
        if needed > self._memory:
            return f"its tensors take {needed / 2**30:,.0f} GiB"
        whole = whole and math.prod(at.grid) <= _PROGRAMS
        begins(_ITS_COMPILATION)
        self._launcher.line = finding.line
        kernel = self._kernel(finding.module, finding.kernel)
        for launch in (below, at):  # with no programs it is only compiled
            kernel[(0, 0, 0)](**given(launch, _nothing))
        if why := self._launcher.refuses(kernel):
            return f"no checks can be compiled into it: {why}"
        with self._alone(at, needed) as tensors:

            def shown(launch: Trial) -> str:
                _fill(tensors, launch)
                begins(_A_LAUNCH)
                line = Path(finding.file).name, finding.line
                return self._shown(kernel, launch, tensors, line, whole)

            first = shown(below)
            if first != PASSES:
                return f"one below it {first}"
            second = shown(at)
        if second == PASSES:
            return PASSED if whole else f"{PASSED}, as far as programs ran"
        return CONFIRMED if whole else AROUND

    def _kernel(self, module: str, name: str) -> Any:
        if (module, name) not in self._kernels:
            self._kernels[module, name] = _unspecialised(self._world.kernel(module, name))
        return self._kernels[module, name]

    @contextlib.contextmanager
    def _alone(self, launch: Trial, needed: int) -> Iterator[dict[str, torch.Tensor]]:
        """The launch's tensors, while no other fork launches anything."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        with self._turn.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            while torch.cuda.mem_get_info()[0] < needed + _BESIDE // 4:  # one that ended had it
                time.sleep(0.02)
            try:
                tensors = {
                    one.name: torch.empty(_even(one), dtype=_kind(one), device=_WHERE)
                    for one in launch.arguments
                    if one.kind.startswith("*")
                }
                yield tensors
            except Exception:
                self.is_lost = True  # the error's frames hold what it took
                raise
            tensors.clear()
            if not self.is_lost:
                torch.cuda.empty_cache()

    def _shown(
        self,
        kernel: Any,
        launch: Trial,
        tensors: Mapping[str, torch.Tensor],
        line: tuple[str, int],
        whole: bool,
    ) -> str:
        starts = [(0, 0, 0)] if whole else around(launch)
        arguments = given(launch, lambda one: tensors[one.name])
        try:
            for start in starts:
                self._launcher.part = Part(start, launch.grid)
                kernel[launch.grid if whole else (1, 1, 1)](**arguments)
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
        return WRAPS if line in [(Path(one.file).name, one.line) for one in wrapped] else PASSES


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


def _fill(tensors: Mapping[str, torch.Tensor], launch: Trial) -> None:
    for one in launch.arguments:
        if not one.kind.startswith("*"):
            continue
        tensor = tensors[one.name]
        if one.holds is None:
            tensor.view(torch.uint8).zero_()
            continue
        both = [fitting(number, tensor.dtype) for number in one.holds]
        # Made there: what is copied to a device is made as large as its place on the host first.
        tensor.view(-1, 2).copy_(torch.tensor(both, dtype=tensor.dtype, device=_WHERE))


if __name__ == "__main__":
    main()
