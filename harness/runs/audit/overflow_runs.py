"""A finding run: its launch under check on this CPU, one below the threshold and at it.

Tensors are virtual: as large as the launch needs, their memory only what is touched. One program
runs, mostly the one at the far corner of the grid. Where the load that arithmetic gives is not the
least, or is none, the least is looked for by running. One below that, programs all over the grid
run: where one of them wraps, the least is looked for once more, with that one.
"""

from __future__ import annotations

import gc
import json
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from harness.checking import IntegerOverflow, OutOfBounds, UncheckableKernel, Violation
from harness.core import child_process
from harness.core.pipes import PipeEnd
from harness.kernels.check.cpu_launcher import CpuLauncher, load_process_state
from harness.kernels.check.launch_log import LaunchLog
from harness.kernels.check.tracked_memory import MemoryTracker
from harness.kernels.ir.graph import FileLine, KernelGraph
from harness.runs.audit.findings import (
    BEYOND_MEMORY,
    CONFIRMED,
    NEEDS_INT64,
    NEVER_EXECUTED,
    AuditFinding,
    FindingKey,
    LaunchArgument,
    TrialLaunch,
)
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.kernel_slice import slice_graph
from harness.runs.audit.probe_memory import ADDRESS_SPAN, make_fresh_tensor, make_tensor
from harness.runs.audit.threshold_search import restate_finding
from harness.runs.audit.trial_launches import (
    OVERFLOWS,
    PASSES,
    LaunchDraw,
    find_program,
    iterate_draws,
    list_corners,
    make_call_arguments,
    make_recorded_trials,
    make_trial_launch,
)

__all__ = [
    "OVERFLOWS",
    "PASSES",
    "OverflowLauncher",
    "confirm_findings",
    "iterate_draws",
    "load_process_state",
    "run_program",
]

_LAUNCH_SECONDS = 1  # of the processor, for one launch and its neighbours
_COMPILE_SECONDS = 3  # and for the first launch of a kernel: later processes find it compiled
_MAX_SLOW_LAUNCHES = (
    3  # launches of a line, after which no other is tried; after twice that of a kernel, 1
)
_PASSING_SECONDS = 3  # seconds of launches of one line that all pass; of the next ones less, but 1
_NEIGHBOUR_SECONDS = 0.3  # seconds for programs beside the one that is run
_MAX_LOWERINGS = (
    10  # times that these may give a lower load: some wrap now and then, and it never ends
)
FindingWithLoads = tuple[AuditFinding, dict[str, int]]
# A load; or one below it, and a corner whose program wraps there; or why neither.
SearchOutcome = int | str | tuple[int, tuple[int, ...]]
LoadSearch = Callable[["OverflowLauncher", AuditFinding, Mapping[str, int]], int | str]


def confirm_findings(
    kernel: Any, case: KernelCase, findings: list[FindingWithLoads]
) -> list[AuditFinding]:
    """The findings with what running them showed; a threshold is what was seen."""
    return _ConfirmationRun(
        kernel, case, findings, _find_least_load, _MAX_SLOW_LAUNCHES, searches_grid=True
    ).run()


def select_observed_findings(
    kernel: Any, case: KernelCase, findings: list[FindingWithLoads]
) -> set[FindingKey]:
    """Of which findings some launch wraps, wherever the least one is, or none can be run.

    What is too slow to run is told of a release as well, so one launch says enough.
    """
    shown = _ConfirmationRun(kernel, case, findings, _find_any_load, max_slow_launches=1).run()
    return {one.key for one in shown if one.is_observed}


class _ConfirmationRun:
    """The findings of one kernel, launch after launch in forks, which may end any way they like."""

    def __init__(
        self,
        kernel: Any,
        case: KernelCase,
        findings: list[FindingWithLoads],
        search: LoadSearch,
        max_slow_launches: int,
        searches_grid: bool = False,
    ) -> None:
        """`slow`: launches of a line that are ended, after which no other is tried; `everywhere`:
        one below a load that was found no other program may wrap, as far as there is time."""
        self._kernel, self._case, self._findings = kernel, case, findings
        self._search, self._max_slow_launches, self._searches_grid = (
            search,
            max_slow_launches,
            searches_grid,
        )
        self._found_load = 0  # a load that was found, while others run one below it
        self._draws = list(
            iterate_draws(case)
        )  # the one that showed a line comes first for the next
        self.confirmed_findings: list[AuditFinding] = []
        self._slow_launches = 0  # launches that were ended
        self._wasted_seconds = 0.0  # seconds for lines that were given up
        self._compiled_finding = (
            -1
        )  # the last finding whose kernel somebody had the time to compile
        self._start_finding()

    def _start_finding(self) -> None:
        """Of the finding that is looked at: what is left to try."""
        self._remaining_draws = list(self._draws)
        self._slow_launches_here = 0  # launches that were ended
        self._last_outcome = ""
        self._spent_seconds = 0.0
        self._known_load = 0  # a load at which the next one to try wraps
        self._lowerings = 0  # times that another program gave one

    def run(self) -> list[AuditFinding]:
        while len(self.confirmed_findings) < len(self._findings):
            self._run_fork()
        return self.confirmed_findings

    def _run_fork(self) -> None:
        """Until a launch ends the process, or there is no finding left."""
        child, pipe = child_process.fork_with_pipe(self._run_launches)
        for line in pipe.iterate_lines():
            match json.loads(line):
                case [int(load)]:
                    self._found_load = load
                case outcome:
                    self._record_outcome(*outcome)
        pipe.close()
        code = child.reap()
        if self._found_load:
            self._record_outcome(self._found_load, 0.0)
        elif len(self.confirmed_findings) < len(self._findings):
            self._record_end(is_too_slow=code == -signal.SIGPROF)

    def _run_launches(self, pipe: PipeEnd) -> None:
        """In a fork: of each launch the load at which it overflows, or why there is none."""
        gc.disable()  # a collection would copy the pages of a process that lives for seconds
        child_process.discard_stderr()
        while len(self.confirmed_findings) < len(self._findings):
            finding, at = self._findings[len(self.confirmed_findings)]
            finding = replace(finding, threshold=self._known_load or finding.threshold)
            launching = OverflowLauncher(
                self._kernel,
                self._case,
                self._remaining_draws[0],
                {finding.line_key},
                on_compiled=_restart_timer,
            )
            compiling = (
                0 if self._compiled_finding == len(self.confirmed_findings) else _COMPILE_SECONDS
            )
            self._compiled_finding = len(self.confirmed_findings)
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, _LAUNCH_SECONDS + compiling)
            said: SearchOutcome = self._search(launching, finding, at)
            if self._searches_grid and isinstance(said, int):
                _restart_timer()
                pipe.send(json.dumps([said]).encode())
                if corner := launching.find_overflowing_corner({**at, finding.quantity: said - 1}):
                    said = said - 1, corner
            signal.setitimer(signal.ITIMER_PROF, 0)
            told = said, time.process_time() - start
            pipe.send(json.dumps(told).encode())
            self._record_outcome(*told)

    def _record_outcome(self, outcome: SearchOutcome, seconds: float) -> None:
        finding, at = self._findings[len(self.confirmed_findings)]
        draw, known = self._remaining_draws.pop(0), self._known_load
        self._known_load = self._found_load = 0
        if not isinstance(outcome, str):
            self._draws = [draw, *(one for one in self._draws if one != draw)]
        if isinstance(outcome, int):
            load = {**at, finding.quantity: outcome}
            seen = restate_finding(self._case, finding, load, outcome)
            trials = make_recorded_trials(self._case, draw, load, finding.quantity)
            self.confirmed_findings.append(replace(seen, confirmed=CONFIRMED, trials=trials))
            self._start_finding()
            return
        self._spent_seconds += seconds
        if not isinstance(outcome, str):
            below, corner = outcome
            outcome = f"one below: {OVERFLOWS}"
            # Or nobody knows what this kernel does.
            if self._lowerings < _MAX_LOWERINGS and (not known or below < known):
                self._known_load, self._last_outcome = below, outcome
                self._lowerings += 1
                self._remaining_draws.insert(0, replace(draw, corner=tuple(corner)))
                return
        self._last_outcome = outcome or self._last_outcome
        patience = max(1, _PASSING_SECONDS - self._wasted_seconds)
        if (
            outcome.startswith("cannot")
            or not self._remaining_draws
            or self._spent_seconds > patience
        ):
            self._give_up()

    def _record_end(self, is_too_slow: bool) -> None:
        """With these contents others would end it, too."""
        self._known_load = 0
        self._compiled_finding = len(self.confirmed_findings)
        self._slow_launches += 1
        self._slow_launches_here += 1
        self._last_outcome = "too slow to run" if is_too_slow else "it ends the process"
        contents = self._remaining_draws[0].contents
        self._remaining_draws = [one for one in self._remaining_draws if one.contents != contents]
        most = (
            min(self._max_slow_launches, 2 * self._max_slow_launches - self._slow_launches)
            if self._spent_seconds
            else 2
        )
        if not self._remaining_draws or self._slow_launches_here >= max(
            1, min(self._max_slow_launches, most)
        ):
            self._give_up()

    def _give_up(self) -> None:
        finding, at = self._findings[len(self.confirmed_findings)]
        self._wasted_seconds += self._spent_seconds
        last = self._last_outcome
        why = last if last == BEYOND_MEMORY else f"not run: {last}" if last else NEVER_EXECUTED
        if self._case.is_read_too_narrow(at):
            why = NEEDS_INT64
        trials = make_recorded_trials(self._case, self._draws[0], at, finding.quantity)
        self.confirmed_findings.append(replace(finding, confirmed=why, trials=trials))
        self._start_finding()


class SlicedCpuLauncher(CpuLauncher):
    """The wraps of some lines count; nothing is computed but what goes from there to an access.

    `case`: how the kernel was read. A launch of those types is not read again, though Triton would
    compile a number that is 1 into it. `compiled`: told when the kernel can run.
    """

    def __init__(
        self,
        lines: Collection[FileLine],
        all_accesses: bool,
        case: KernelCase | None = None,
        on_compiled: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(MemoryTracker(), LaunchLog(), exact=True)
        self._on_compiled = on_compiled
        self.watched_lines = frozenset(lines)
        self._case, self._is_case_launch = case, False
        self._slice_lines = None if all_accesses else self.watched_lines
        self.graph_variant = "skeleton" if all_accesses else f"skeleton {sorted(lines)}"

    def bind_call(self, binder: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        bound = super().bind_call(binder, args, options)
        kinds = tuple(one.kind for one in self._case.parameters) if self._case is not None else ()
        both = zip(bound.types, bound.constants, kinds, strict=False)
        self._is_case_launch = len(kinds) == len(bound.types) and all(
            kind == read or (kind == "constexpr" and constant == (int, 1) and read[0] in "iu")
            for kind, constant, read in both
        )
        if not self._is_case_launch:
            return bound
        own = zip(bound.constants, kinds, strict=True)
        constants = tuple(one if kind == "constexpr" else None for one, kind in own)
        return replace(bound, types=kinds, constants=constants, key=(kinds, constants))

    def make_program(self, kernel: Any, binder: Any, bound: Any) -> Any:
        found = super().make_program(kernel, binder, bound)
        if self._on_compiled is not None:
            self._on_compiled()
        return found

    def specialize_call(self, kernel: Any, binder: Any, bound: Any) -> Any:
        return bound if self._is_case_launch else super().specialize_call(kernel, binder, bound)

    def build_graph(self, kernel: Any, bound: Any) -> KernelGraph:
        read = self._case if self._is_case_launch else None
        graph = super().build_graph(kernel, bound) if read is None else read.graph
        return slice_graph(graph, self._slice_lines)

    def __enter__(self) -> SlicedCpuLauncher:
        super().__enter__()
        return self

    def run_only(self, name: str, programs: Iterable[tuple[int, ...]]) -> None:
        self._launches.run_only(name, programs)


def _restart_timer() -> None:
    """What is compiled has this long to run, and its neighbours as long again."""
    signal.setitimer(signal.ITIMER_PROF, _LAUNCH_SECONDS)


def _find_least_load(
    launching: OverflowLauncher, finding: AuditFinding, loads: Mapping[str, int]
) -> int | str:
    """From where on it wraps; nothing, or why not, where it never does."""

    @cache
    def outcome(load: int) -> str:
        return launching.run({**loads, finding.quantity: load})

    low, high = finding.threshold - 1, finding.threshold
    said = outcome(high)
    _restart_timer()
    step = 1
    if said == OVERFLOWS:
        while low > 1 and outcome(low) == OVERFLOWS:
            low, high, step = max(1, low - step), low, 2 * step
    elif said != PASSES:
        return said
    elif outcome(finding.largest) != OVERFLOWS:
        return ""
    else:
        low, high = high, min(high + step, finding.largest)
        while high < finding.largest and outcome(high) != OVERFLOWS:
            step *= 2
            low, high = high, min(high + step, finding.largest)
    while high - low > 1:
        middle = (low + high) // 2
        if outcome(middle) == OVERFLOWS:
            high = middle
        else:
            low = middle
    below = outcome(low)
    if below == PASSES and launching.is_beyond_memory({**loads, finding.quantity: low}):
        below = BEYOND_MEMORY
    return high if below == PASSES else below if below == BEYOND_MEMORY else f"one below: {below}"


def _find_any_load(
    launching: OverflowLauncher, finding: AuditFinding, loads: Mapping[str, int]
) -> int | str:
    """A load at which it wraps; nothing, or why not, where it never does."""
    for load in (finding.threshold, finding.largest):
        said = launching.run({**loads, finding.quantity: load})
        _restart_timer()
        if said != PASSES:
            return load if said == OVERFLOWS else said
    return ""


class OverflowLauncher:
    """One kernel's launches at different loads; the wraps of some lines are looked for."""

    def __init__(
        self,
        kernel: Any,
        case: KernelCase,
        draw: LaunchDraw,
        lines: Collection[FileLine],
        on_compiled: Callable[[], None] | None = None,
    ) -> None:
        self._kernel, self._case, self._draw, self._lines = kernel, case, draw, lines
        self._on_compiled = on_compiled
        writes = any(one.name.startswith("tt.atomic") for one, _ in case.access_graph.accesses)
        self._make_tensor = make_fresh_tensor if writes else make_tensor

    def is_beyond_memory(self, loads: Mapping[str, int]) -> bool:
        """Whether any access, on these lines' way or not, goes past what tensors have room for."""
        return (
            self._case.can_access_beyond(loads, ADDRESS_SPAN)
            and self.run(loads, all_accesses=True) == BEYOND_MEMORY
        )

    def find_overflowing_corner(self, loads: Mapping[str, int]) -> tuple[int, ...]:
        """A corner whose program wraps, alone, of those that there is time for."""
        grid = make_trial_launch(self._case, self._draw, loads).grid
        left, many = list_corners(grid, self._draw.corner), 1
        now = time.process_time()
        ends = now + _NEIGHBOUR_SECONDS
        while left and many > 0:
            some, left = left[:many], left[many:]
            if found := self._bisect_corners(loads, some, ends):
                return found
            before, now = now, time.process_time()
            many = min(2 * many, int((ends - now) / max(1e-4, now - before) * len(some)))
        return ()

    def _bisect_corners(
        self, loads: Mapping[str, int], tried_corners: Sequence[tuple[int, ...]], deadline: float
    ) -> tuple[int, ...]:
        """A launch ends with the first thing that it has to tell, which may be another one."""
        if (
            time.process_time() > deadline
            or (said := self.run(loads, other_corners=tried_corners)) == PASSES
        ):
            return ()
        if len(tried_corners) == 1:
            return tried_corners[0] if said == OVERFLOWS else ()
        half = len(tried_corners) // 2
        return self._bisect_corners(loads, tried_corners[:half], deadline) or self._bisect_corners(
            loads, tried_corners[half:], deadline
        )

    def run(
        self,
        loads: Mapping[str, int],
        all_accesses: bool = False,
        other_corners: Iterable[tuple[int, ...]] = (),
    ) -> str:
        """`beside`: the corners of programs that run instead of the one that was drawn."""
        launch = make_trial_launch(self._case, self._draw, loads)
        compiled = None if all_accesses else self._on_compiled
        programs = [find_program(launch.grid, corner) for corner in other_corners]
        return run_program(
            self._kernel, launch, self._lines, all_accesses, self._make_tensor, self._case, compiled, programs
        )  # fmt: skip


def run_program(
    kernel: Any,
    launch: TrialLaunch,
    lines: Collection[FileLine],
    all_accesses: bool = False,
    tensor_factory: Callable[[LaunchArgument], torch.Tensor] | None = None,
    case: KernelCase | None = None,
    on_compiled: Callable[[], None] | None = None,
    programs: Iterable[tuple[int, ...]] = (),
) -> str:
    """How one program of the launch ends; `whole`: with all accesses, and not those of the lines.

    `tensor`: the memory of an argument, if it is not to be all the room that there can be.
    `programs`: others than its own.
    """
    try:
        with SlicedCpuLauncher(lines, all_accesses, case, on_compiled) as session:
            session.run_only(kernel.fn.__name__, programs or [launch.program])
            kernel[launch.grid](**make_call_arguments(launch, tensor_factory or make_tensor))
    except IntegerOverflow:
        return OVERFLOWS
    except (OutOfBounds, OverflowError):  # of a stride that 64 bits do not hold
        return BEYOND_MEMORY
    except Violation as error:
        return error.headline
    except UncheckableKernel as error:
        return f"cannot follow it: {error}"
    except Exception as error:
        return f"cannot launch it: {type(error).__name__}: {error}"
    return PASSES
