"""Launches under check on a CPU: Triton's own kernels, compiled with every check built in.

A session takes the place of `JITFunction.run`. What Triton would compile for a GPU is read as its
IR, compiled for this machine, and run program after program; what a program does wrong is in a
report, and here it becomes words.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from harness import kernels, native
from harness.checking import lines
from harness.checking.launches import Launch, Launches, whole_grid
from harness.checking.memory import Memory, Program, Span
from harness.checking.regions import Shadows, Tables
from harness.checking.telling import Told
from harness.checking.violations import CannotFollow, Violation
from harness.kernels import frontend, loosening
from harness.native.layout import MOST_WRAPS, Context, Region, Report, Unanswered, Wrap
from harness.patching import kernels as patching

_SMALLEST_SCRATCH = 1 << 16
_NUMBER = (1 << 64) - 1
Line = tuple[str, int]  # a file's


class _Device:
    """What code under test asks Triton's driver, where there is none."""

    def get_current_target(self) -> Any:
        return frontend.TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda


class _Process:
    """What all sessions of a process use again."""

    def __init__(self) -> None:
        self.shadows = Shadows()
        self.wraps = np.zeros((MOST_WRAPS, len(Wrap)), dtype=np.int64)
        self.context = (ctypes.c_uint64 * len(Context))()
        self.report = (ctypes.c_int64 * len(Report))()
        self.next = 1  # the number of the next program
        self._scratch = np.empty(_SMALLEST_SCRATCH, dtype=np.uint8)
        self.ran = np.zeros(256, dtype=np.uint8)  # which blocks of a kernel

    def blocks(self, count: int) -> int:
        if len(self.ran) < count:
            self.ran = np.zeros(count, dtype=np.uint8)
        return int(self.ran.ctypes.data)

    def scratch(self, size: int) -> int:
        if len(self._scratch) < size:
            self._scratch = np.empty(size, dtype=np.uint8)
        address = int(self._scratch.ctypes.data)
        return address + -address % 64


_process: _Process | None = None


def make_ready() -> _Process:
    global _process
    native.ready()
    if _process is None:
        _process = _Process()
    return _process


class Session:
    """Launches under check, from `__enter__` to `__exit__`."""

    reads = "whole"  # what of a kernel is run, in a word: `graph_of` makes it

    def __init__(
        self, memory: Memory, launches: Launches, exact: bool, trusting: bool = False
    ) -> None:
        self._memory = memory
        self._exact = exact  # products of float32, where a GPU would take tf32
        self._trusting = trusting  # addresses that kernels load, whatever they are
        self._launches = launches
        self._running: Launch | None = None
        self.only: frozenset[Line] | None = None  # whose wraps count, and nothing else
        self._undo: list[Any] = []

    def __enter__(self) -> Session:
        if not isinstance(tl.sum, JITFunction):
            raise CannotFollow("Triton is interpreting: start without TRITON_INTERPRET")
        self._process = make_ready()
        session = self

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            if not warmup:
                session.launch(kernel, args, grid, options)

        self._undo = [patching.running(JITFunction, run), (Autotuner, Autotuner.__dict__["_bench"])]
        # One configuration is as right as another, and none is faster here.
        Autotuner._bench = lambda tuner, *args, **options: 0.0
        self._undo.append((driver, driver._active))
        if not torch.cuda.is_available():
            driver.set_active(_Device())
        return self

    def __exit__(self, *error: object) -> None:
        (_, active), (_, bench), run = self._undo.pop(), self._undo.pop(), self._undo.pop()
        driver._active = active
        Autotuner._bench = bench
        patching.running(JITFunction, run)

    def launch(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
    ) -> None:
        name = str(kernel.fn.__name__)
        if self._running is not None:
            raise CannotFollow(f"{name}: a launch inside a launch")
        names = kernel.signature.parameters
        options = {key: value for key, value in options.items() if key in names}
        for hook in kernel.pre_run_hooks:
            hook(*args, **options)
        binder = frontend.binder_of(kernel)
        with torch._C.DisableTorchFunction():
            bound = self.bound(binder, args, options)
        sides = grid(dict(bound.values)) if callable(grid) else grid
        launch = Launch(name, whole_grid(sides), dict(bound.values))
        self._running = launch
        try:
            with torch._C.DisableTorchFunction():
                self._launches.starts(launch, self._memory)
                self._run(launch, kernel, binder, bound)
        except (Violation, CannotFollow) as error:
            self._launches.refused.append(error)
            raise
        finally:
            self._running = None
            self._launches.ends(launch)

    def _program(
        self, name: str, kernel: Any, binder: Any, bound: Any
    ) -> tuple[native.Program, tuple[Any, ...]]:
        """What runs a call, and the numbers of its constants that it is given for that."""
        key = (bound.key, self._exact, self.reads)
        found: tuple[native.Program, tuple[Any, ...]] | None = binder.programs.get(key)
        if found is None:
            try:
                found = binder.programs[key] = self.made(kernel, binder, bound)
            except Exception as error:
                raise CannotFollow(
                    f"{name}: the checker cannot follow it: {_words(error)}"
                ) from error
        return found

    def made(self, kernel: Any, binder: Any, bound: Any) -> tuple[native.Program, tuple[Any, ...]]:
        shared = self.shared(kernel, binder, bound)
        key = (shared.key, self._exact, self.reads)
        known = binder.programs.get(key)
        if known is None:
            program = native.program_of(
                f"{self.reads} {frontend.key_of(kernel, shared)}",
                lambda: self.graph_of(kernel, shared),
                self._exact,
            )
            known = binder.programs[key] = program, ()
        return known[0], shared.numbers

    def bound(self, binder: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return binder.bind(args, options)

    def shared(self, kernel: Any, binder: Any, bound: Any) -> Any:
        return loosening.loosened(kernel, binder, bound)

    def graph_of(self, kernel: Any, bound: Any) -> kernels.Graph:
        return kernels.graph_of(kernel, bound)

    def _run(self, launch: Launch, kernel: Any, binder: Any, bound: Any) -> None:
        chosen = self._launches.chosen(launch)
        if chosen is not None and not chosen:
            return  # what runs no program needs none made
        process = self._process
        program, numbers = self._program(launch.kernel, kernel, binder, bound)
        lowered = program.lowered
        values, spans = self._arguments(launch, (*bound.arguments(), *numbers), lowered)
        programs = range(launch.size) if chosen is None else chosen
        process.shadows.launch_starts()
        tables = Tables(
            lowered,
            spans,
            None if self._trusting else list(self._memory.living()),
            programs,
            process.shadows,
            lambda number: _coordinates(number, launch.grid),
        )
        arguments = struct.pack(f"<{len(values)}Q", *values)
        regions = struct.pack(f"<{len(tables.parameters)}q", *tables.parameters)
        storages = struct.pack(f"<{len(tables.everything)}q", *tables.everything)
        named = (
            struct.pack(f"<{3 * len(chosen)}q", *(side for one in chosen for side in one))
            if chosen
            else b""
        )
        only = self.only or ()
        counting = bytes((one.source.file, one.source.line) in only for one in lowered.sites)
        context = process.context
        context[:] = [
            *launch.grid,
            _address(named) if chosen else 0,
            len(programs),
            process.scratch(lowered.scratch + 64),
            ctypes.addressof(process.report),
            _address(arguments),
            _address(regions),
            _address(storages),
            len(tables.everything) // len(Region),
            process.next,
            0,
            process.wraps.ctypes.data,
            0,
            0,
            process.blocks(len(lowered.blocks)),
            _address(counting) if self.only is not None else 0,
        ]
        process.next += len(programs) + 1
        if sys.gettrace() is not None:
            process.ran[:] = 0
        wrong = program.launch(ctypes.addressof(context))
        if sys.gettrace() is not None:
            lines.tell(
                line
                for block, ran in zip(lowered.blocks, process.ran, strict=False)
                for line in (block if ran else ())
            )
        if wrong:
            raise self._told(launch, lowered, spans, tables, programs, _address(regions)).error()
        if context[Context.REFUSED]:
            what = Unanswered(int(context[Context.REFUSED])).words
            raise CannotFollow(f"{launch.kernel}: {what}")

    def _told(
        self, launch: Launch, lowered: Any, spans: Any, tables: Tables, programs: Any, regions: int
    ) -> Told:
        context = self._process.context
        first = int(context[Context.FIRST])
        numbers = tuple(self._process.report)
        wraps = self._process.wraps

        def program_of(number: int) -> Program:
            found = programs[number - first]
            return _coordinates(found, launch.grid) if isinstance(found, int) else found

        table, size = int(context[Context.STORAGES]), len(Region) * 8
        place = (numbers[Report.REGION] - table) // size
        inside = numbers[Report.REGION] >= table and place < len(tables.known)
        return Told(
            launch.kernel,
            numbers,
            lowered.sites,
            tuple(spans),
            tables.known[place] if inside else None,
            self._memory,
            program_of,
            lambda number: tuple(int(one) for one in wraps[number]),
        )

    # Arguments

    def _arguments(
        self, launch: Launch, arguments: Iterable[Any], lowered: Any
    ) -> tuple[list[int], list[Span | None]]:
        """Each as the 64 bits that the kernel is given, and the memory behind a pointer."""
        values: list[int] = []
        spans: list[Span | None] = []
        kinds = iter(lowered.kinds)
        for argument in arguments:
            if argument.kind.startswith("tensordesc"):
                self._descriptor(argument, kinds, values, spans)
                continue
            kind = next(kinds)
            value = argument.value
            span = None
            if kind.is_pointer and not isinstance(value, int):
                span = self._span(argument.name, value, kind)
                value = span.start
                if self.only is not None:  # what wraps elsewhere goes far
                    span = replace(span, start=span.storage.start, end=span.storage.end)
            values.append(_bits(value, kind.element))
            spans.append(span)
        if len(values) != len(lowered.kinds):
            given = f"{len(values)} values for {len(lowered.kinds)} parameters"
            raise CannotFollow(f"{launch.kernel}: the checker cannot follow it: {given}")
        return values, spans

    def _span(self, name: str, value: Any, kind: Any) -> Span:
        base = getattr(value, "base", value)  # of a reinterpreted tensor
        if not isinstance(base, torch.Tensor):
            raise CannotFollow(f"{name} is {type(value).__name__}, and not a tensor")
        if base.device.type != "cpu":
            raise CannotFollow(f"{name} is on {base.device}: kernels run on the CPU here")
        size = 8 if kind.pointee.startswith("ptr<") else native.size_of(kind.pointee)
        return self._memory.span_of(base, name, size)

    def _descriptor(
        self, argument: Any, kinds: Any, values: list[int], spans: list[Span | None]
    ) -> None:
        """A descriptor made by the host, as all that Triton hands over in its place."""
        base, *rest = frontend.handed_over(argument.value)
        span = self._span(argument.name, base, next(kinds))
        values += [span.start, *(_bits(one, next(kinds).element) for one in rest)]
        spans += [span, *[None] * len(rest)]


def _address(packed: bytes) -> int:
    """Where the bytes lie: they must outlive the call that is given this."""
    return ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p).value or 0


def _coordinates(number: int, grid: Program) -> Program:
    rest, z = divmod(number, grid[2])
    x, y = divmod(rest, grid[1])
    return x, y, z


def _bits(value: Any, element: str) -> int:
    if element[0] == "i" or element.startswith("ptr<"):
        return int(value) & _NUMBER
    form = {"f16": "<e", "f32": "<f", "f64": "<d"}.get(element)
    if element == "bf16":
        return struct.unpack("<I", struct.pack("<f", float(value)))[0] >> 16  # type: ignore[no-any-return]
    if form is None:
        raise CannotFollow(f"an argument of type {element}")
    return int.from_bytes(struct.pack(form, float(value)), "little")


def _words(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, native.Refused):
        return text
    return f"Triton refuses it: {type(error).__name__}: {text}"
