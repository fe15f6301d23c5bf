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

from harness.compiled import CHECKS, LINE, Asked, triton_side
from harness.compiled.arena import Arena, Told
from harness.compiled.born import BORN
from harness.compiled.known import KNOWN, follow
from harness.compiled.shadows import Shadows
from harness.kernels import frontend, launched, loosening
from harness.kernels.graph import bits_of
from harness.kernels.loosening import Way
from harness.patching import kernels as patching

_KEPT = "checked by unfix"  # beside the compiled kernels: whoever sets those aside takes it along
_REFUSED = "why not"
_FIXED = "its constants stay constants"
_REMEMBERED = 1 << 14  # launches; those that a graph captured are remembered for good
_ANYWHERE = 1 << 62


@dataclass(frozen=True, slots=True)
class Given:
    """A pointer as a launch gave it, without holding on to the tensor."""

    name: str
    start: int
    reach: int
    itemsize: int
    shape: tuple[int, ...]
    kind: str
    empty: bool = False  # it was when its storage was made

    def __str__(self) -> str:
        return f"{self.name} {self.kind} {list(self.shape)}"


@dataclass(slots=True)
class Launched:
    """A launch as it is remembered: it holds no tensor, nor what could hold one."""

    kernel: str
    pointers: tuple[Given, ...]
    scalars: dict[str, Any]
    captured: bool
    when: str  # in a server: the forward mode and batch
    compiled: Any = None

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
        self._before: Any = None
        self._heard: Any = None

    def start(self) -> None:
        triton_side.prepare()
        self._heard = follow()
        launcher = self

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            with KNOWN.deaf():
                return launcher.run(kernel, args, grid, warmup, options)

        self._before = patching.running(JITFunction, run)

    def stop(self) -> None:
        patching.running(JITFunction, self._before)
        if self._heard is not None:
            torch.Tensor.data_ptr = self._heard

    def refuses(self, kernel: Any) -> str:
        """Why this kernel runs without checks, for all that is known; nothing where it does not."""
        if type(kernel) is not JITFunction:
            return f"it is a {type(kernel).__name__}"
        return str(kernel.device_caches.get(_KEPT, {}).get(_REFUSED, ""))

    def run(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, warmup: bool, options: dict[str, Any]
    ) -> Any:
        def plain() -> Any:
            return self._before(kernel, *args, grid=grid, warmup=warmup, **options)

        if warmup:
            return plain()
        if launched.is_wanted():
            frontend.binder_of(kernel).bind(args, options)
        name = str(kernel.fn.__name__)
        tally = self.tally.setdefault(name, Tally())
        tally.launches += 1
        if why := self.refuses(kernel):
            tally.refused = why
            return plain()
        capturing = torch.cuda.is_current_stream_capturing()
        pointers, scalars = flattened(kernel, args, options, capturing or self._whole)
        lists = self.fences(pointers) if self.fences is not None else None
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
        note = Launched(name, pointers, scalars, capturing, self._when())
        number = REPORTS.remember(note)
        line = (self.line,) if LINE in checks else ()
        head = (block, number, *(() if lists is None else (lists,)), *(races or ()), *line)
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
            return self.run(kernel, args, grid, warmup, options)
        except Exception as error:
            if self._strict or "CUDA error" in str(error):
                raise
            # With checks it does not compile, or does not fit; if it is wrong itself, this says so.
            result = plain()
            words = str(error).splitlines()[0] if str(error) else ""
            self._refuse(kernel, tally, f"{type(error).__name__}: {words}")
            return result
        found = getattr(note.compiled.metadata, triton_side.KEY, None)
        if found is None:
            self._refuse(kernel, tally, "what compiled it passed the check by")
        else:
            self._refuse(kernel, tally, found.get("refused", ""))
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
    def _refuse(kernel: Any, tally: Tally, why: str) -> None:
        tally.refused = why
        if why:
            kernel.device_caches.setdefault(_KEPT, {})[_REFUSED] = why

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


def beside(pointers: Sequence[Given]) -> tuple[tuple[int, int], ...]:
    """Which two of them reach into the same memory."""
    ends = [(one.start, one.start + one.reach) for one in pointers]
    return tuple(
        (first, second)
        for first, second in itertools.combinations(range(len(ends)), 2)
        if max(ends[first][0], ends[second][0]) < min(ends[first][1], ends[second][1])
    )


def flattened(
    kernel: Any, args: tuple[Any, ...], options: dict[str, Any], whole: bool = False
) -> tuple[tuple[Given, ...], dict[str, Any]]:
    """A launch's pointers in the order of the kernel's parameters, and its numbers."""
    pointers: list[Given] = []
    scalars: dict[str, Any] = {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        value = args[place] if place < len(args) else options.get(name, parameter.default)
        for inner, leaf in _leaves(name, value):
            if hasattr(leaf, "data_ptr"):
                pointers.append(_given(inner, leaf, whole))
            elif isinstance(leaf, (bool, int, float)):
                scalars[inner] = leaf
    return tuple(pointers), scalars


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from _leaves(f"{name}[{place}]", part)
    else:
        yield name, value


def _given(name: str, value: Any, whole: bool) -> Given:
    tensor = getattr(value, "base", None) if not isinstance(value, torch.Tensor) else value
    if not isinstance(tensor, torch.Tensor):
        return Given(name, value.data_ptr(), _ANYWHERE, 1, (), "a pointer")
    start, size = tensor.data_ptr(), tensor.element_size()
    if whole:
        # Of a capture always: the part of a buffer that one batch needs is cut out before it, and
        # a replay for a larger one goes on behind it.
        storage = tensor.untyped_storage()
        reach = storage.data_ptr() + storage.nbytes() - start
    elif tensor.is_contiguous():
        reach = tensor.numel() * size
    elif tensor.numel():
        sides = zip(tensor.shape, tensor.stride(), strict=True)
        reach = (1 + sum((side - 1) * stride for side, stride in sides)) * size
    else:
        reach = 0
    kind = str(tensor.dtype).removeprefix("torch.")
    empty = bool(BORN) and BORN.has(tensor.untyped_storage().data_ptr())
    return Given(name, start, reach, size, tuple(tensor.shape), kind, empty)
