"""A finding run: its launch under check on this CPU, one below the threshold and at it.

Tensors are virtual: as large as the launch needs, their memory only what is touched. One program
runs, mostly the one at the far corner of the grid. Where the load that arithmetic gives is not the
least, or is none, the least is looked for by running. One below that, programs all over the grid
run: where one of them wraps, the least is looked for once more, with that one.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from harness.audit.case import Case
from harness.audit.examining import restated
from harness.audit.findings import BEYOND, CONFIRMED, NEVER, WIDER, Argument, Finding, Key, Trial
from harness.audit.rooms import REACH, afresh, roomy
from harness.audit.skeleton import skeleton
from harness.audit.trials import PASSES, WRAPS, Drawn, corners, drawn, given, kept, place, trial
from harness.checking import CannotFollow, OutOfBounds, Violation, Wrapped
from harness.checking.launches import Launches
from harness.checking.launching import Line, Session, make_ready
from harness.checking.memory import Memory
from harness.kernels import Graph

__all__ = ["PASSES", "WRAPS", "Launching", "confirmed", "drawn", "make_ready", "outcome"]

_SECONDS = 1  # of the processor, for one launch and its neighbours
_COMPILING = 3  # and for the first launch of a kernel: later processes find it compiled
_TOO_SLOW = 3  # launches of a line, after which no other is tried; after twice that of a kernel, 1
_PATIENCE = 3  # seconds of launches of one line that all pass; of the next ones less, but 1
_BESIDE = 0.3  # seconds for programs beside the one that is run
_LOWER = 10  # times that these may give a lower load: some wrap now and then, and it never ends
Found = tuple[Finding, dict[str, int]]
# A load; or one below it, and a corner whose program wraps there; or why neither.
Said = int | str | tuple[int, tuple[int, ...]]
Looks = Callable[["Launching", Finding, Mapping[str, int]], int | str]


def confirmed(kernel: Any, case: Case, found: list[Found]) -> list[Finding]:
    """The findings with what running them showed; a threshold is what was seen."""
    return _Run(kernel, case, found, _least, _TOO_SLOW, everywhere=True).to_the_end()


def seen(kernel: Any, case: Case, found: list[Found]) -> set[Key]:
    """Of which findings some launch wraps, wherever the least one is, or none can be run.

    What is too slow to run is told of a release as well, so one launch says enough.
    """
    shown = _Run(kernel, case, found, _any, slow=1).to_the_end()
    return {one.key for one in shown if one.is_seen}


class _Run:
    """The findings of one kernel, launch after launch in forks, which may end any way they like."""

    def __init__(
        self,
        kernel: Any,
        case: Case,
        found: list[Found],
        looks: Looks,
        slow: int,
        everywhere: bool = False,
    ) -> None:
        """`slow`: launches of a line that are ended, after which no other is tried; `everywhere`:
        one below a load that was found no other program may wrap, as far as there is time."""
        self._kernel, self._case, self._found = kernel, case, found
        self._looks, self._most, self._everywhere = looks, slow, everywhere
        self._seen = 0  # a load that was found, while others run one below it
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
        self._known = 0  # a load at which the next one to try wraps
        self._lower = 0  # times that another program gave one

    def to_the_end(self) -> list[Finding]:
        while len(self.shown) < len(self._found):
            self._go_on()
        return self.shown

    def _go_on(self) -> None:
        """Until a launch ends the process, or there is no finding left."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            gc.disable()  # it lives for seconds, and would copy what it looks through
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
                match json.loads(line):
                    case [int(load)]:
                        self._seen = load
                    case told:
                        self._hear(*told)
        _, status = os.waitpid(child, 0)
        if self._seen:
            self._hear(self._seen, 0.0)
        elif len(self.shown) < len(self._found):
            self._ended(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)

    def _tell(self, write: int) -> None:
        """In a fork: of each launch the load at which it wraps, or why there is none."""
        while len(self.shown) < len(self._found):
            finding, at = self._found[len(self.shown)]
            finding = replace(finding, threshold=self._known or finding.threshold)
            launching = Launching(
                self._kernel, self._case, self._left[0], {finding.at}, compiled=_in_time
            )
            compiling = 0 if self._compiled == len(self.shown) else _COMPILING
            self._compiled = len(self.shown)
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, _SECONDS + compiling)
            said: Said = self._looks(launching, finding, at)
            if self._everywhere and isinstance(said, int):
                _in_time()
                os.write(write, f"[{said}]\n".encode())
                if corner := launching.elsewhere({**at, finding.quantity: said - 1}):
                    said = said - 1, corner
            signal.setitimer(signal.ITIMER_PROF, 0)
            told = said, time.process_time() - start
            os.write(write, (json.dumps(told) + "\n").encode())
            self._hear(*told)

    def _hear(self, said: Said, seconds: float) -> None:
        finding, at = self._found[len(self.shown)]
        draw, known = self._left.pop(0), self._known
        self._known = self._seen = 0
        if not isinstance(said, str):
            self._draws = [draw, *(one for one in self._draws if one != draw)]
        if isinstance(said, int):
            load = {**at, finding.quantity: said}
            seen = restated(self._case, finding, load, said)
            trials = kept(self._case, draw, load, finding.quantity)
            self.shown.append(replace(seen, confirmed=CONFIRMED, trials=trials))
            self._next()
            return
        self._spent += seconds
        if not isinstance(said, str):
            below, corner = said
            said = f"one below: {WRAPS}"
            # Or nobody knows what this kernel does.
            if self._lower < _LOWER and (not known or below < known):
                self._known, self._last = below, said
                self._lower += 1
                self._left.insert(0, replace(draw, corner=tuple(corner)))
                return
        self._last = said or self._last
        patience = max(1, _PATIENCE - self._vain)
        if said.startswith("cannot") or not self._left or self._spent > patience:
            self._give_up()

    def _ended(self, in_time: bool) -> None:
        """With these contents others would end it, too."""
        self._known = 0
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
        if self._case.is_narrow(at):
            why = WIDER
        trials = kept(self._case, self._draws[0], at, finding.quantity)
        self.shown.append(replace(finding, confirmed=why, trials=trials))
        self._next()


class Watching(Session):
    """The wraps of some lines count; nothing is computed but what goes from there to an access.

    `case`: how the kernel was read. A launch of those types is not read again, though Triton would
    compile a number that is 1 into it. `compiled`: told when the kernel can run.
    """

    def __init__(
        self,
        lines: Collection[Line],
        whole: bool,
        case: Case | None = None,
        compiled: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(Memory(), Launches(), exact=True)
        self._compiled = compiled
        self.only = frozenset(lines)
        self._case, self._is_read = case, False
        self._looks = None if whole else self.only
        self.reads = "skeleton" if whole else f"skeleton {sorted(lines)}"

    def bound(self, binder: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        bound = super().bound(binder, args, options)
        kinds = tuple(one.kind for one in self._case.given) if self._case is not None else ()
        both = zip(bound.kinds, bound.constants, kinds, strict=False)
        self._is_read = len(kinds) == len(bound.kinds) and all(
            kind == read or (kind == "constexpr" and constant == (int, 1) and read[0] in "iu")
            for kind, constant, read in both
        )
        if not self._is_read:
            return bound
        own = zip(bound.constants, kinds, strict=True)
        constants = tuple(one if kind == "constexpr" else None for one, kind in own)
        return replace(bound, kinds=kinds, constants=constants, key=(kinds, constants))

    def made(self, kernel: Any, binder: Any, bound: Any) -> Any:
        found = super().made(kernel, binder, bound)
        if self._compiled is not None:
            self._compiled()
        return found

    def shared(self, kernel: Any, binder: Any, bound: Any) -> Any:
        return bound if self._is_read else super().shared(kernel, binder, bound)

    def graph_of(self, kernel: Any, bound: Any) -> Graph:
        read = self._case if self._is_read else None
        graph = super().graph_of(kernel, bound) if read is None else read.graph
        return skeleton(graph, self._looks)

    def __enter__(self) -> Watching:
        super().__enter__()
        return self

    def run_these(self, name: str, programs: Iterable[tuple[int, ...]]) -> None:
        self._launches.only(name, programs)


def _in_time() -> None:
    """What is compiled has this long to run, and its neighbours as long again."""
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)


def _least(launching: Launching, finding: Finding, at: Mapping[str, int]) -> int | str:
    """From where on it wraps; nothing, or why not, where it never does."""

    @cache
    def outcome(load: int) -> str:
        return launching.outcome({**at, finding.quantity: load})

    low, high = finding.threshold - 1, finding.threshold
    said = outcome(high)
    _in_time()
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
        _in_time()
        if said != PASSES:
            return load if said == WRAPS else said
    return ""


class Launching:
    """One kernel's launches at different loads; the wraps of some lines are looked for."""

    def __init__(
        self,
        kernel: Any,
        case: Case,
        drawn: Drawn,
        lines: Collection[Line],
        compiled: Callable[[], None] | None = None,
    ) -> None:
        self._kernel, self._case, self._drawn, self._lines = kernel, case, drawn, lines
        self._compiled = compiled
        writes = any(one.name.startswith("tt.atomic") for one, _ in case.reading.accesses)
        self._room = afresh if writes else roomy

    def goes_far(self, at: Mapping[str, int]) -> bool:
        """Whether any access, on these lines' way or not, goes past what tensors have room for."""
        return self._case.may_reach(at, REACH) and self.outcome(at, whole=True) == BEYOND

    def elsewhere(self, at: Mapping[str, int]) -> tuple[int, ...]:
        """A corner whose program wraps, alone, of those that there is time for."""
        grid = trial(self._case, self._drawn, at).grid
        left, many = corners(grid, self._drawn.corner), 1
        now = time.process_time()
        ends = now + _BESIDE
        while left and many > 0:
            some, left = left[:many], left[many:]
            if found := self._that_wraps(at, some, ends):
                return found
            before, now = now, time.process_time()
            many = min(2 * many, int((ends - now) / max(1e-4, now - before) * len(some)))
        return ()

    def _that_wraps(
        self, at: Mapping[str, int], some: Sequence[tuple[int, ...]], ends: float
    ) -> tuple[int, ...]:
        """A launch ends with the first thing that it has to tell, which may be another one."""
        if time.process_time() > ends or (said := self.outcome(at, beside=some)) == PASSES:
            return ()
        if len(some) == 1:
            return some[0] if said == WRAPS else ()
        half = len(some) // 2
        return self._that_wraps(at, some[:half], ends) or self._that_wraps(at, some[half:], ends)

    def outcome(
        self,
        at: Mapping[str, int],
        whole: bool = False,
        beside: Iterable[tuple[int, ...]] = (),
    ) -> str:
        """`beside`: the corners of programs that run instead of the one that was drawn."""
        launch = trial(self._case, self._drawn, at)
        compiled = None if whole else self._compiled
        programs = [place(launch.grid, corner) for corner in beside]
        return outcome(
            self._kernel, launch, self._lines, whole, self._room, self._case, compiled, programs
        )  # fmt: skip


def outcome(
    kernel: Any,
    launch: Trial,
    lines: Collection[Line],
    whole: bool = False,
    tensor: Callable[[Argument], torch.Tensor] | None = None,
    case: Case | None = None,
    compiled: Callable[[], None] | None = None,
    programs: Iterable[tuple[int, ...]] = (),
) -> str:
    """How one program of the launch ends; `whole`: with all accesses, and not those of the lines.

    `tensor`: the memory of an argument, if it is not to be all the room that there can be.
    `programs`: others than its own.
    """
    try:
        with Watching(lines, whole, case, compiled) as session:
            session.run_these(kernel.fn.__name__, programs or [launch.program])
            kernel[launch.grid](**given(launch, tensor or roomy))
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
