"""Launches at their true size, of which some programs run: the corners of the grid, and a few more.

Invariant: each distinct launch (kernel, grid, shapes, strides, integers, constants, and how much of
its arguments' memory is unwritten: all, part or nothing) runs once under check, on the programs
whose numbers are extreme, and goes on after a violation, which is recorded.

Floats have no values in a dry run, so a kernel runs as its slice of accesses and addresses; one of
integers alone runs whole, since later launches depend on what it writes.

The third side of a grid counts the parts of a request, of which only some have anything to do. So
all parts of the last request's last head run, if they are few.

Example: of a grid of 4,096 x 8 x 16 programs eight corners run, the 14 parts between two of them,
and four drawn ones.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.runs.rehearse.cuda_launches import CudaCalls
from harness.runs.rehearse.written_memory import WrittenMemory
from harness.sanitizer.check import launch_limits
from harness.sanitizer.check.cpu_launcher import CpuLauncher
from harness.sanitizer.check.launch_log import KernelLaunch, LaunchLog
from harness.sanitizer.check.options import CheckOptions
from harness.sanitizer.check.tracked_memory import MemoryTracker, ProgramId, TensorSpan
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.cpu.lowering import LoweredKernel
from harness.sanitizer.ir.graph import KernelGraph
from harness.sanitizer.ir.kernel_slice import slice_graph
from harness.sanitizer.triton.frontend import BoundCall, CallBinder, RuntimeArgument
from harness.sanitizer.violations.exceptions import IntegerOverflow, UncheckableKernel, Violation
from harness.store.rehearse.values import (
    INT32_LIMIT,
    NEAR_FACTOR,
    FindingRank,
    RehearsalFinding,
    RehearsedLaunch,
)

DRAWN_PROGRAMS = 4  # beside the corners
_WHOLE_GRID = 16  # programs up to which all run
_WHOLE_ROW = 16  # programs of the third side up to which all run in its last row
_SEED = 38
_REPORTS_OF_A_LAUNCH = 16
_ALIGNMENT = 16  # bytes of the widest access

LaunchKey = tuple[Any, ...]


@dataclass(frozen=True)
class ProbedLaunches:
    """The launches of a probe, and what they show."""

    launches: dict[LaunchKey, RehearsedLaunch]
    findings: dict[tuple[str, ...], RehearsalFinding]


class SampledLaunchLog(LaunchLog):
    """A log that keeps no launch alive, and chooses the programs to run."""

    def __init__(self) -> None:
        super().__init__()
        self.running: ProgramId | None = None  # the only program that runs; None for all

    def get_chosen_programs(self, launch: KernelLaunch) -> tuple[ProgramId, ...] | None:
        return None if self.running is None else (self.running,)

    def end_launch(self, launch: KernelLaunch) -> None:
        super().end_launch(launch)
        self.clear()  # a launch holds its tensors, whose memory is counted


def choose_programs(grid: ProgramId) -> tuple[ProgramId, ...]:
    """Choose the corners of a grid, its last row if it is short, and some; all of a small grid."""
    if grid[0] * grid[1] * grid[2] <= _WHOLE_GRID:
        return tuple(itertools.product(*map(range, grid)))  # type: ignore[arg-type]
    corners = itertools.product(*((0, side - 1) for side in grid))
    parts = grid[2] if grid[2] <= _WHOLE_ROW else 0
    row = ((grid[0] - 1, grid[1] - 1, part) for part in range(parts))
    draw = random.Random(_SEED)
    drawn = (tuple(draw.randrange(side) for side in grid) for _ in range(DRAWN_PROGRAMS))
    return tuple(dict.fromkeys((*corners, *row, *drawn)))  # type: ignore[arg-type]


class SampledLauncher(CpuLauncher):
    """Runs a sample of each distinct launch of a process, and records all."""

    measures_extents = True

    def __init__(self) -> None:
        self.log = SampledLaunchLog()
        options = CheckOptions(Arithmetic.CLOSE, max_reports=_REPORTS_OF_A_LAUNCH)
        super().__init__(MemoryTracker(), self.log, options, trust_loaded_pointers=True)
        self.written = WrittenMemory()
        # By a record's id, with the record: the parameters whose memory its launches may write.
        self._written_parameters: dict[int, tuple[RehearsedLaunch, frozenset[str] | None]] = {}
        # The launches whose reads were checked, each with what was unwritten then.
        self._checked_states: set[tuple[int, tuple[int, ...]]] = set()
        # Of the launch that runs: whether its addresses are a server's, None before that is known,
        # and the parameters whose memory it may write.
        self._is_certain: bool | None = None
        self._written: frozenset[str] | None = frozenset()
        self.phase = ""
        self.launches: dict[LaunchKey, RehearsedLaunch] = {}
        self.findings: dict[tuple[str, ...], RehearsalFinding] = {}
        # The accesses behind the lines that overflowed, each with its batch.
        self._overflowed: set[tuple[str, int, str]] = set()
        self.fits: Callable[[], bool] = lambda: True  # what the batch has allocated so far
        self.is_recording = False  # outside of the phases integers are computed, and no more
        self._probed_kernels: frozenset[str] | None = None  # the only ones to check; None for all
        self._slices = False
        self.cuda = CudaCalls(self, choose_programs, describe_value)
        self._current: RehearsedLaunch | None = None
        self._followed: list[RehearsedLaunch] | None = None  # while nothing follows them

    @property
    def graph_variant(self) -> str:  # type: ignore[override]
        return "slice with reads" if self._slices else "whole"

    @contextlib.contextmanager
    def probe(self, kernels: frozenset[str]) -> Iterator[ProbedLaunches]:
        """Check these kernels in other batches, and yield what they show, apart from the record."""
        launches, findings = self.launches, self.findings
        checked_states, self._checked_states = self._checked_states, set()
        self.launches, self.findings = {}, {}
        self._probed_kernels = kernels
        try:
            with self.written.restore_afterwards(), self.cuda.probe(kernels):
                yield ProbedLaunches(self.launches, self.findings)
        finally:
            self.is_recording, self._probed_kernels = False, None
            self.launches, self.findings = launches, findings
            self._checked_states = checked_states

    @contextlib.contextmanager
    def follow(self) -> Iterator[list[RehearsedLaunch]]:
        """Yield the records of what is launched meanwhile, one for each launch."""
        before, followed = self._followed, list[RehearsedLaunch]()
        self._followed = followed
        try:
            yield followed
        finally:
            self._followed = before

    def build_graph(self, kernel: Any, bound: Any) -> KernelGraph:
        graph = super().build_graph(kernel, bound)
        return slice_graph(graph, None, marks_reads=True) if self._slices else graph

    def launch(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
    ) -> None:
        values = self._bind(kernel, args, options)
        sides = grid(values) if callable(grid) else grid
        is_integer = not any(map(has_float, values.values()))
        record, is_new = self._record(kernel, tuple(map(int, sides)), values)
        if refusal := launch_limits.find_grid_refusal(kernel.fn.__name__, sides):
            self._skip(frozenset(values), values)
            self.add_finding(record, refusal)
            return
        if not is_integer and not self._has_to_run(record, values):
            _, written = self._written_parameters.get(id(record), (None, frozenset(values)))
            self._skip(written, values)
            return
        self._slices = not is_integer
        self._current, self._is_certain, self._written = record, None, frozenset(values)
        try:
            super().launch(kernel, args, grid, options)
        except UncheckableKernel as refusal:
            self._skip(self._written, values)
            if record is not None:
                record.refusal = str(refusal)
        except Violation as last:  # of those in the log, or what a card refuses
            if last not in self.log.errors:
                self.add_finding(record, last)
        finally:
            self.written.end_launch()
        for error in self.log.errors:
            if isinstance(error, Violation):
                self.add_finding(record, error)
        if record is not None and is_new and not record.refusal:
            total = record.grid[0] * record.grid[1] * record.grid[2]
            record.programs = len(choose_programs(record.grid)) if self._slices else total
        self.log.errors.clear()

    def _encode_arguments(
        self, launch: KernelLaunch, arguments: Iterable[RuntimeArgument], lowered: LoweredKernel
    ) -> tuple[list[int], list[TensorSpan | None]]:
        values, spans = super()._encode_arguments(launch, arguments, lowered)
        if self._is_certain is None:  # what the first program writes does not change it
            self._is_certain = self.written.loads_certain_values(lowered, spans)
        self._written = self.written.begin_launch(
            lowered, spans, is_whole=not self._slices, is_certain=self._is_certain
        )
        if self._current is not None:
            self._written_parameters[id(self._current)] = self._current, self._written
        return values, spans

    def _has_to_run(self, record: RehearsedLaunch | None, values: dict[str, Any]) -> bool:
        """Return whether a launch with floats may show more than those before it.

        One without a record is bound for what it may write; none of its programs runs.
        """
        if record is None:
            return self.written.is_followed
        state = id(record), self.written.describe_unwritten(list_tensors(values.values()))
        if record.refusal or state in self._checked_states:
            return False
        self._checked_states.add(state)
        return True

    def _skip(self, names: frozenset[str] | None, values: dict[str, Any]) -> None:
        """Follow what a launch may write that does not run: these parameters, or any memory."""
        if names is None:
            self.written.forget()
        elif not names <= values.keys():  # part of a tuple
            names = frozenset(values)
        self.written.skip_launch(list_tensors(values[name] for name in names or ()))

    def _run_programs(
        self, launch: KernelLaunch, kernel: Any, binder: CallBinder, bound: BoundCall
    ) -> list[Violation]:
        """Run a slice's programs one at a time: no races of a sample, and no memory for them."""
        if not self._slices:
            return super()._run_programs(launch, kernel, binder, bound)
        if self._current is None:
            program, numbers = self.get_program(launch.kernel, kernel, binder, bound)
            arguments = (*bound.runtime_arguments(), *numbers)
            self._encode_arguments(launch, arguments, program.lowered)
            return []
        violations: list[Violation] = []
        try:
            for self.log.running in choose_programs(launch.grid):
                violations += super()._run_programs(launch, kernel, binder, bound)
        finally:
            self.log.running = None
        return violations

    def report_extents(self, lowered: LoweredKernel, extents: list[int]) -> None:
        record = self._current
        if record is None or not extents or (largest := max(extents)) <= record.extent:
            return
        source = lowered.sites[extents.index(largest)].source
        record.note_extent(largest, *source.line_key)

    def _bind(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        names = kernel.signature.parameters
        known = {name: value for name, value in options.items() if name in names}
        try:
            bound = kernel.signature.bind(*args, **known)
        except TypeError:  # Triton's own error is the one to show
            return dict(zip(names, args, strict=False)) | known
        bound.apply_defaults()
        return dict(bound.arguments)

    def _record(
        self, kernel: Any, sides: Sequence[int], values: dict[str, Any]
    ) -> tuple[RehearsedLaunch | None, bool]:
        name = f"{kernel.fn.__module__}:{kernel.fn.__qualname__}"
        x, y, z = (*sides, 1, 1)[:3]
        described = {parameter: describe_value(value) for parameter, value in values.items()}
        return self.record_launch(name, (x, y, z), described)

    def record_launch(
        self, name: str, grid: ProgramId, arguments: dict[str, str]
    ) -> tuple[RehearsedLaunch | None, bool]:
        """Record a launch, or count one that is known; return its record, and whether it is new."""
        is_probed = self._probed_kernels is None or name in self._probed_kernels
        if not self.is_recording or not is_probed:
            return None, False
        key = (self.phase, name, grid, tuple(arguments.items()))
        known = self.launches.get(key)
        if known is not None:
            self.count_again(known)
            return known, False
        record = RehearsedLaunch(name, self.phase, grid, arguments, fits=self.fits())
        self.launches[key] = record
        self._note_followed(record)
        return record, True

    def count_again(self, record: RehearsedLaunch) -> None:
        """Count another launch like a recorded one."""
        record.count += 1
        self._note_followed(record)

    def _note_followed(self, record: RehearsedLaunch) -> None:
        if self._followed is not None:
            self._followed.append(record)

    def list_findings(self) -> list[RehearsalFinding]:
        """List the violations, and each line whose addresses are near to their limit.

        A line whose address overflowed in another launch of the batch is no near one.
        """
        near: dict[tuple[str, int, str], RehearsedLaunch] = {}
        for launch in self.launches.values():
            key = (launch.extent_file, launch.extent_line, launch.phase)
            is_near = INT32_LIMIT // NEAR_FACTOR <= launch.extent < INT32_LIMIT
            if (
                is_near
                and key not in self._overflowed
                and (key not in near or near[key].extent < launch.extent)
            ):
                near[key] = launch
        return [*self.findings.values(), *map(make_near_finding, near.values())]

    def add_finding(self, record: RehearsedLaunch | None, violation: Violation) -> None:
        if record is None:
            return
        where = violation.location
        finding = RehearsalFinding(
            kind=type(violation).__name__,
            phase=self.phase,
            kernel=record.kernel,
            headline=": ".join([violation.headline, *violation.details[:1]]),
            file=where.file if where else "",
            line=where.line if where else 0,
            text=where.text if where else "",
            detail=str(violation),
            fits=record.fits,
        )
        if isinstance(violation, IntegerOverflow):
            self._overflowed.add((record.extent_file, record.extent_line, self.phase))
            record.extent = INT32_LIMIT
            record.extent_file, record.extent_line = finding.file, finding.line
            record.extent_text = finding.text
        known = self.findings.setdefault((finding.phase, *finding.key), finding)
        if known is not finding:
            known.count += 1


def make_near_finding(launch: RehearsedLaunch) -> RehearsalFinding:
    name = launch.kernel.rpartition(":")[2]
    return RehearsalFinding(
        kind=IntegerOverflow.__name__,
        phase=launch.phase,
        kernel=launch.kernel,
        headline=f"{name}: a 32-bit integer in an address comes to {launch.extent:,}, "
        f"{launch.nearness:.0%} of its limit",
        file=launch.extent_file,
        line=launch.extent_line,
        text=launch.extent_text,
        rank=FindingRank.NEAR,
        extent=launch.extent,
        fits=launch.fits,
    )


def has_float(value: Any) -> bool:
    """Return whether an argument is a floating-point tensor, or holds one."""
    if isinstance(value, (list, tuple)):
        return any(map(has_float, value))
    tensor = getattr(value, "base", value)  # of a descriptor
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()


def list_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """List the tensors among a kernel's arguments, and those under descriptors and in tuples."""
    for value in values:
        tensor = getattr(value, "base", value)
        if isinstance(value, (list, tuple)):
            yield from list_tensors(value)
        elif isinstance(tensor, torch.Tensor):
            yield tensor


def describe_value(value: Any) -> str:
    """Describe an argument by all that a launch depends on, without its address."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        text = f"{kind}{list(value.shape)}"
        if not value.is_contiguous():
            text += f" strides {list(value.stride())}"
        if rest := value.data_ptr() % _ALIGNMENT:  # by which code is chosen, and specialized
            text += f" {rest} bytes past a multiple of {_ALIGNMENT}"
        return text
    if isinstance(value, (int, float, bool, str, type(None))):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe_value, value))}]"
    base = getattr(value, "base", None)
    if isinstance(base, torch.Tensor):
        block = getattr(value, "block_shape", "")
        return f"descriptor of {describe_value(base)} by {block}".strip()
    if type(value).__name__ == "dtype" or isinstance(value, enum.Enum):  # of torch, of Triton
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))
