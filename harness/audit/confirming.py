"""A finding run: its launch under check on this CPU, one below the threshold and at it.

Tensors are virtual: as large as the launch needs, their memory only what is touched. One program
runs, mostly the one at the far corner of the grid. Where the load that arithmetic gives is not the
least, or is none, the least is looked for by running.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from harness.audit.examining import Case, restated
from harness.audit.findings import BEYOND, CONFIRMED, NEVER, Argument, Finding, Key, Trial
from harness.audit.skeleton import skeleton
from harness.audit.trials import PASSES, TYPES, WRAPS, Drawn, drawn, fitting, given, kept, trial
from harness.checking import CannotFollow, OutOfBounds, Violation, Wrapped, virtual
from harness.checking.launches import Launches
from harness.checking.launching import Line, Session, make_ready
from harness.checking.memory import Memory
from harness.kernels import Graph

__all__ = ["PASSES", "WRAPS", "Launching", "confirmed", "drawn", "make_ready", "outcome"]

_REACH = 1 << 39  # bytes on each side of where a tensor begins: all that is right, or wraps
_TILE = 1 << 22  # of the first tensors of numbers; of later ones more, or Linux runs out of maps
_BLOCK = 1 << 16
_SECONDS = 1  # of the processor, for one launch and its neighbours
_COMPILING = 3  # and for the first launch of a kernel: later processes find it compiled
_TOO_SLOW = 3  # launches of a line, after which no other is tried; after twice that of a kernel, 1
_PATIENCE = 3  # seconds of launches of one line that all pass; of the next ones less, but 1
Found = tuple[Finding, dict[str, int]]
Looks = Callable[["Launching", Finding, Mapping[str, int]], int | str]


def confirmed(kernel: Any, case: Case, found: list[Found]) -> list[Finding]:
    """The findings with what running them showed; a threshold is what was seen."""
    return _Run(kernel, case, found, _least, _TOO_SLOW).to_the_end()


def seen(kernel: Any, case: Case, found: list[Found]) -> set[Key]:
    """Of which findings some launch wraps, wherever the least one is, or none can be run.

    What is too slow to run is told of a release as well, so one launch says enough.
    """
    shown = _Run(kernel, case, found, _any, slow=1).to_the_end()
    return {one.key for one in shown if one.is_seen}


class _Run:
    """The findings of one kernel, launch after launch in forks, which may end any way they like."""

    def __init__(
        self, kernel: Any, case: Case, found: list[Found], looks: Looks, slow: int
    ) -> None:
        """`slow`: launches of a line that are ended, after which no other is tried."""
        self._kernel, self._case, self._found = kernel, case, found
        self._looks, self._most = looks, slow
        self._draws = list(drawn(case))  # the one that showed a line comes first for the next
        self.shown: list[Finding] = []
        self._slow = 0  # launches that were ended
        self._vain = 0.0  # seconds for lines that were given up
        self._compiled = -1  # the last finding whose kernel somebody had the time to compile
        self._next()

    def _next(self) -> None:
        """Of the finding that is looked at: what is left to try."""
        self._left = list(self._draws)
        self._here = 0  # launches that were ended
        self._last = ""
        self._spent = 0.0

    def to_the_end(self) -> list[Finding]:
        while len(self.shown) < len(self._found):
            self._go_on()
        return self.shown

    def _go_on(self) -> None:
        """Until a launch ends the process, or there is no finding left."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)
            try:
                self._tell(write)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as answers:
            for line in answers:
                self._hear(*json.loads(line))
        _, status = os.waitpid(child, 0)
        if len(self.shown) < len(self._found):
            self._ended(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)

    def _tell(self, write: int) -> None:
        """In a fork: of each launch the load at which it wraps, or why there is none."""
        while len(self.shown) < len(self._found):
            finding, at = self._found[len(self.shown)]
            launching = Launching(self._kernel, self._case, self._left[0], {finding.at})
            compiling = 0 if self._compiled == len(self.shown) else _COMPILING
            self._compiled = len(self.shown)
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, _SECONDS + compiling)
            said = self._looks(launching, finding, at)
            signal.setitimer(signal.ITIMER_PROF, 0)
            told = said, time.process_time() - start
            os.write(write, (json.dumps(told) + "\n").encode())
            self._hear(*told)

    def _hear(self, said: int | str, seconds: float) -> None:
        finding, at = self._found[len(self.shown)]
        draw = self._left.pop(0)
        if isinstance(said, int):
            self._draws.sort(key=lambda one: one != draw)
            load = {**at, finding.quantity: said}
            seen = restated(self._case, finding, load, said)
            trials = kept(self._case, draw, load, finding.quantity)
            self.shown.append(replace(seen, confirmed=CONFIRMED, trials=trials))
            self._next()
            return
        self._last = said or self._last
        self._spent += seconds
        patience = max(1, _PATIENCE - self._vain)
        if said.startswith("cannot") or not self._left or self._spent > patience:
            self._give_up()

    def _ended(self, in_time: bool) -> None:
        """With these contents others would end it, too."""
        self._compiled = len(self.shown)
        self._slow += 1
        self._here += 1
        self._last = "too slow to run" if in_time else "it ends the process"
        contents = self._left[0].contents
        self._left = [one for one in self._left if one.contents != contents]
        most = min(self._most, 2 * self._most - self._slow) if self._spent else 2
        if not self._left or self._here >= max(1, min(self._most, most)):
            self._give_up()

    def _give_up(self) -> None:
        finding, at = self._found[len(self.shown)]
        self._vain += self._spent
        last = self._last
        why = last if last == BEYOND else f"not run: {last}" if last else NEVER
        trials = kept(self._case, self._draws[0], at, finding.quantity)
        self.shown.append(replace(finding, confirmed=why, trials=trials))
        self._next()


class Watching(Session):
    """The wraps of some lines count; nothing is computed but what goes from there to an access."""

    def __init__(self, lines: Collection[Line], whole: bool) -> None:
        super().__init__(Memory(), Launches(), exact=True)
        self.only = frozenset(lines)
        self._looks = None if whole else self.only
        self.reads = "skeleton" if whole else f"skeleton {sorted(lines)}"

    def graph_of(self, kernel: Any, bound: Any) -> Graph:
        return skeleton(super().graph_of(kernel, bound), self._looks)

    def __enter__(self) -> Watching:
        super().__enter__()
        return self

    def run_these(self, name: str, programs: Iterable[tuple[int, ...]]) -> None:
        self._launches.only(name, programs)


def _least(launching: Launching, finding: Finding, at: Mapping[str, int]) -> int | str:
    """From where on it wraps; nothing, or why not, where it never does."""

    def outcome(load: int) -> str:
        return launching.outcome({**at, finding.quantity: load})

    low, high = finding.threshold - 1, finding.threshold
    said = outcome(high)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)  # it is compiled now
    step = 1
    if said == WRAPS:
        while low > 1 and outcome(low) == WRAPS:
            low, high, step = max(1, low - step), low, 2 * step
    elif said != PASSES:
        return said
    elif outcome(finding.largest) != WRAPS:
        return ""
    else:
        low, high = high, min(high + step, finding.largest)
        while high < finding.largest and outcome(high) != WRAPS:
            step *= 2
            low, high = high, min(high + step, finding.largest)
    while high - low > 1:
        middle = (low + high) // 2
        if outcome(middle) == WRAPS:
            high = middle
        else:
            low = middle
    below = outcome(low)
    if below == PASSES and launching.goes_far({**at, finding.quantity: low}):
        below = BEYOND
    return high if below == PASSES else below if below == BEYOND else f"one below: {below}"


def _any(launching: Launching, finding: Finding, at: Mapping[str, int]) -> int | str:
    """A load at which it wraps; nothing, or why not, where it never does."""
    for load in (finding.threshold, finding.largest):
        said = launching.outcome({**at, finding.quantity: load})
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)  # it is compiled now
        if said != PASSES:
            return load if said == WRAPS else said
    return ""


class Launching:
    """One kernel's launches at different loads; the wraps of some lines are looked for."""

    def __init__(self, kernel: Any, case: Case, drawn: Drawn, lines: Collection[Line]) -> None:
        self._kernel, self._case, self._drawn, self._lines = kernel, case, drawn, lines

    def goes_far(self, at: Mapping[str, int]) -> bool:
        """Whether any access, on these lines' way or not, goes past what tensors have room for."""
        return self._case.may_reach(at, _REACH) and self.outcome(at, whole=True) == BEYOND

    def outcome(self, at: Mapping[str, int], whole: bool = False) -> str:
        return outcome(self._kernel, trial(self._case, self._drawn, at), self._lines, whole)


def outcome(
    kernel: Any,
    launch: Trial,
    lines: Collection[Line],
    whole: bool = False,
    tensor: Callable[[Argument], torch.Tensor] | None = None,
) -> str:
    """How one program of the launch ends; `whole`: with all accesses, and not those of the lines.

    `tensor`: the memory of an argument, if it is not to be all the room that there can be.
    """
    try:
        with Watching(lines, whole) as session:
            session.run_these(kernel.fn.__name__, [launch.program])
            kernel[launch.grid](**given(launch, tensor or _roomy))
    except Wrapped:
        return WRAPS
    except (OutOfBounds, OverflowError):  # of a stride that 64 bits do not hold
        return BEYOND
    except Violation as error:
        return error.headline
    except CannotFollow as error:
        return f"cannot follow it: {error}"
    except Exception as error:
        return f"cannot launch it: {type(error).__name__}: {error}"
    return PASSES


def _roomy(one: Argument) -> torch.Tensor:
    kind = TYPES[one.kind[1:]]
    return repeated(one.name, *one.holds, kind) if one.holds else room(one.name, kind)


@cache
def room(name: str, kind: torch.dtype) -> torch.Tensor:
    middle = _REACH // kind.itemsize
    return virtual((2 * middle,), kind)[middle:]


_TILES: dict[int, tuple[int, int, bytes]] = {}  # by where a tensor begins: a file, what it repeats


def repeated(name: str, even: int, odd: int, kind: torch.dtype) -> torch.Tensor:
    """Two numbers in turn, over as many as 32 bits count: one piece of memory, many times."""
    tile = torch.tensor([fitting(even, kind), fitting(odd, kind)], dtype=kind)
    content = tile.view(torch.uint8).numpy().tobytes()
    made = room(name, kind)
    start = made.data_ptr()
    if start not in _TILES:
        size = _TILE << len(_TILES) // 6
        _TILES[start] = (os.memfd_create("unfix"), size, b"")
        os.truncate(_TILES[start][0], size)
        for place in range(0, (1 << 31) * kind.itemsize, size):
            _map(start + place, size, _TILES[start][0])
    file, size, before = _TILES[start]
    if content != before:
        block = content * (_BLOCK // len(content))
        os.pwritev(file, [block] * (size // _BLOCK), 0)
        _TILES[start] = (file, size, content)
    return made


@cache
def _mmap() -> Any:
    mapped = ctypes.CDLL(None, use_errno=True).mmap
    mapped.restype = ctypes.c_void_p
    mapped.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return mapped


def _map(address: int, size: int, file: int) -> None:
    flags = mmap.MAP_PRIVATE | 0x10  # at this very address
    if _mmap()(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0) != address:
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
