"""Launches of kernels with checks: what each pointer may reach goes along as an argument.

So a captured launch keeps its extents, and a replay is checked as the first run was. Nothing here
waits for the device: reports are in the host's memory, see `arena`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from harness.compiled import CHECKS, LINE, PART, Asked, inductor, triton_side
from harness.compiled.arena import Arena, Told
from harness.compiled.known import KNOWN, follow
from harness.compiled.part import Part
from harness.compiled.pointers import Given, beside, flattened
from harness.compiled.shadows import Shadows
from harness.kernels import frontend, launched, loosening
from harness.kernels.graph import bits_of
from harness.kernels.loosening import Way
from harness.patching import kernels as patching

_KEPT = "checked by unfix"  # beside the compiled kernels: whoever sets those aside takes it along
_REFUSED = "why not"
_FENCELESS = "why not with fences"
_FIXED = "its constants stay constants"
_REMEMBERED = 1 << 14  # launches; those that a graph captured are remembered for good


@dataclass(slots=True)
class Launched:
    """A launch as it is remembered: it holds no tensor, nor what could hold one."""

    kernel: str
    pointers: tuple[Given, ...]
    scalars: dict[str, Any]
    captured: bool
    when: str  # in a server: the forward mode and batch
    compiled: Any = None
    whence: str = ""  # of Inductor's: the function that it compiled

    def __str__(self) -> str:
        words = [*map(str, self.pointers), *(f"{k} {v}" for k, v in self.scalars.items())]
        return ", ".join(words)


@dataclass(slots=True)
class Tally:
    """How often a kernel was launched, and why it was not checked, if it was not."""

    launches: int = 0
    refused: str = ""
    unchecked: dict[str, int] = field(default_factory=dict)


class Reports:
    """Of this process: what all launchers use again, as kernels are kept with their tables."""

    def __init__(self) -> None:
        self._arenas: dict[int, Arena] = {}
        self._shadows: dict[int, Shadows] = {}
        self._numbers = itertools.count(1)
        self._launched: dict[int, Launched] = {}
        self._order: deque[int] = deque()

    def table(self, device: int) -> int | None:
        if device not in self._arenas:
            if torch.cuda.is_current_stream_capturing():
                return None
            self._arenas[device] = Arena(device)
        return self._arenas[device].block()

    def show_memory(self, device: int) -> None:
        if not torch.cuda.is_current_stream_capturing():  # a graph reads what is there by then
            self._arenas[device].show_memory()

    def launch_starts(self, device: int, run: Any) -> tuple[int, int] | None:
        """What the next launch's races are told by; None where a graph is captured too early."""
        captured = torch.cuda.is_current_stream_capturing()
        if device not in self._shadows:
            if captured:
                return None
            self._shadows[device] = Shadows(f"cuda:{device}")
        return self._shadows[device].launch_starts(run, captured)

    def remember(self, note: Launched) -> int:
        number = next(self._numbers)
        self._launched[number] = note
        if not note.captured:
            self._order.append(number)
            if len(self._order) > _REMEMBERED:
                self._launched.pop(self._order.popleft(), None)
        return number

    def told(self) -> Iterator[tuple[Told, Launched]]:
        """What was put down since the last time, with the launches."""
        for arena in self._arenas.values():
            if arena.rings():
                for record in arena.told():
                    if record.launch in self._launched:
                        yield record, self._launched[record.launch]

    def forget(self) -> None:
        for arena in self._arenas.values():
            arena.forget()


REPORTS = Reports()


class Launcher:
    """Takes the place of `JITFunction.run`, from `start` to `stop`."""

    def __init__(
        self,
        checks: Sequence[str] = CHECKS,
        when: Callable[[], str] = str,
        strict: bool = False,
        whole_storages: bool = False,
        loosens: bool = False,
    ) -> None:
        """`whole_storages`: a pointer may go on to the end of what its tensor was cut out of.

        `loosens`: constants that a kernel only computes with are handed over, which saves
        compilations and costs each launch some tens of microseconds.
        """
        self.checks, self._when, self._strict = tuple(checks), when, strict
        self._whole, self._loosens = whole_storages, loosens
        self._racing = "races" in self.checks
        self._others = tuple(check for check in self.checks if check != "races")
        self.tally: dict[str, Tally] = {}
        # A launch's table of fences, or none; asked while this is set.
        self.fences: Callable[[Sequence[Given]], int | None] | None = None
        self.line = 0  # of the source, whose wraps count where a line's alone do
        self.part = Part((0, 0, 0), (0, 0, 0))  # of a grid, where what is launched is one
        self._before: Any = None
        self._inductors: Any = None  # what launched its kernels
        self._heard: Any = None

    def start(self) -> None:
        triton_side.prepare()
        self._heard = follow()
        launcher = self

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            with KNOWN.deaf():
                return launcher.run(kernel, args, grid, warmup, options)

        self._before = patching.running(JITFunction, run)

    def take_inductors(self) -> None:
        """Inductor's kernels, too, once it is loaded."""
        launcher = self

        def run(tuner: Any, *args: Any, **options: Any) -> Any:
            with KNOWN.deaf():
                return launcher._run_inductors(tuner, args, options)

        if self._inductors is None:
            self._inductors = inductor.running(run)

    def stop(self) -> None:
        patching.running(JITFunction, self._before)
        if self._inductors is not None:
            inductor.running(self._inductors)
        if self._heard is not None:
            torch.Tensor.data_ptr = self._heard

    def refuses(self, kernel: Any, fenced: bool = False) -> str:
        """Why this kernel runs without checks, for all that is known; nothing where it does not.

        `fenced`: in a launch with fences.
        """
        if type(kernel) is not JITFunction:
            return f"it is a {type(kernel).__name__}"
        kept = kernel.device_caches.get(_KEPT, {})
        return str(kept.get(_REFUSED) or (fenced and kept.get(_FENCELESS)) or "")

    def run(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, warmup: bool, options: dict[str, Any]
    ) -> Any:
        def plain() -> Any:
            return self._before(kernel, *args, grid=grid, warmup=warmup, **options)

        return plain() if warmup else self._run(kernel, args, grid, options, plain, self._whole)

    def _run_inductors(self, tuner: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        def plain() -> Any:
            return self._inductors(tuner, *args, **options)

        named = {name: one for name, one in options.items() if name != "stream"}
        if named.pop("benchmark_run", False):
            return plain()
        try:
            made = inductor.as_launch(tuner, args, named)
        except Exception as error:  # another Inductor, or its own to tell, as it is called
            tally = self.tally.setdefault(inductor.name_of(tuner), Tally())
            tally.launches += 1
            why = str(error).splitlines() or [""]
            unlike = isinstance(error, inductor.Unlike)
            tally.refused = why[0] if unlike else f"{type(error).__name__}: {why[0]}"
            return plain()
        # It cuts buffers into parts, and hands on views whose strides it knows itself.
        whence = inductor.whence()
        return self._run(made.kernel, (), made.grid, made.options, plain, True, whence)

    def _run(
        self,
        kernel: Any,
        args: tuple[Any, ...],
        grid: Any,
        options: dict[str, Any],
        plain: Callable[[], Any],
        whole: bool,
        whence: str = "",
    ) -> Any:
        if launched.is_wanted():
            frontend.binder_of(kernel).bind(args, options)
        name = str(kernel.fn.__name__)
        tally = self.tally.setdefault(name, Tally())
        tally.launches += 1
        if why := self.refuses(kernel):
            tally.refused = why
            return plain()
        capturing = torch.cuda.is_current_stream_capturing()
        pointers, scalars = flattened(kernel, args, options, capturing or whole)
        lists = self.fences(pointers) if self.fences is not None else None
        fenced = lists is not None
        device = torch.cuda.current_device()
        races = self._races(device, options) if self._racing else None
        checks = self.checks if races is not None else self._others
        checks = checks if lists is None else (*checks, "fences")
        call = self._call(kernel, args, grid, options)
        asked = Asked(len(pointers), checks, () if races is None else beside(pointers), call.way)
        made = self._twin(kernel, asked, device, tally)
        if made is None:
            return plain()
        twin, block = made
        REPORTS.show_memory(device)
        note = Launched(name, pointers, scalars, capturing, self._when(), whence=whence)
        number = REPORTS.remember(note)
        line = (self.line,) if LINE in checks else ()
        part = self.part.numbers if PART in checks else ()
        head = (block, number, *(() if lists is None else (lists,)), *(races or ()), *line, *part)
        extents = (pointer.reach for pointer in pointers)
        given = (*head, *extents, *call.numbers, *call.args)
        try:
            with triton_side.compiling(asked):
                note.compiled = self._before(
                    twin, *given, grid=call.grid, warmup=False, **call.options
                )
        except triton_side.Unforeseen:
            kernel.device_caches[_KEPT][_FIXED] = True
            tally.launches -= 1
            return self._run(kernel, args, grid, options, plain, whole, whence)
        except Exception as error:
            if self._strict or "CUDA error" in str(error):
                raise
            # With checks it does not compile, or does not fit; if it is wrong itself, this says so.
            result = plain()
            words = str(error).splitlines()[0] if str(error) else ""
            self._refuse(kernel, tally, f"{type(error).__name__}: {words}", fenced)
            return result
        found = getattr(note.compiled.metadata, triton_side.KEY, None)
        if found is None:
            self._refuse(kernel, tally, "what compiled it passed the check by")
        else:
            self._refuse(kernel, tally, found.get("refused", ""), fenced)
            tally.unchecked = found.get("unchecked", {})
        return note.compiled

    def _call(self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> Call:
        call = Call(args, grid, options)
        made = kernel.device_caches.setdefault(_KEPT, {})
        if self._loosens and not made.get(_FIXED):
            try:
                return loosely(kernel, call)
            except Exception:  # what the front end refuses is Triton's to tell, as it is called
                made[_FIXED] = True
        return call

    def _races(self, device: int, options: dict[str, Any]) -> tuple[int, int] | None:
        """Not of a launch that may begin before the one in front of it has ended."""
        if options.get("launch_pdl"):
            return None
        return REPORTS.launch_starts(device, self._before)

    @staticmethod
    def _refuse(kernel: Any, tally: Tally, why: str, fenced: bool = False) -> None:
        tally.refused = why
        if why:
            place = _FENCELESS if fenced else _REFUSED
            kernel.device_caches.setdefault(_KEPT, {})[place] = why

    def _twin(self, kernel: Any, asked: Asked, device: int, tally: Tally) -> tuple[Any, int] | None:
        """The kernel with checks, and the address of its table."""
        made = kernel.device_caches.setdefault(_KEPT, {})
        key = (asked.pointers, asked.checks, asked.beside, asked.numbers, device)
        if key not in made:
            table = REPORTS.table(device)
            if table is None:
                why = "there was no room for its reports"
                if torch.cuda.is_current_stream_capturing():
                    tally.refused = why  # for as long as that
                else:
                    self._refuse(kernel, tally, why)
                return None
            try:
                made[key] = (triton_side.twin(kernel, asked), table)
            except (OSError, ValueError, TypeError) as error:
                self._refuse(kernel, tally, f"its source cannot be read again ({error})")
                return None
        return made[key]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Call:
    """A launch as it is made: with what it hands over in the place of constants."""

    args: tuple[Any, ...]
    grid: Any
    options: dict[str, Any]
    way: Way | None = None
    numbers: tuple[int, ...] = ()


def loosely(kernel: Any, call: Call) -> Call:
    """The launch as the first one that it shares its IR with, and its own numbers for that."""
    binder = frontend.binder_of(kernel)
    bound = binder.bind(call.args, call.options)
    if bound.key not in binder.programs:
        shared = loosening.loosened(kernel, binder, bound)
        numbers = tuple(_signed(one.value, bits_of(one.kind)) for one in shared.numbers)
        binder.programs[bound.key] = shared.way, numbers
    way, numbers = binder.programs[bound.key]
    if way is None:
        return call
    return Call(
        tuple(way.values.get(place, value) for place, value in enumerate(bound.values.values())),
        call.grid(dict(bound.values)) if callable(call.grid) else call.grid,
        {name: value for name, value in call.options.items() if name not in bound.values},
        way,
        numbers,
    )


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) == 1 else number
