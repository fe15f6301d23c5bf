"""Confirms findings on this CPU: a launch overflows at the threshold and passes one below it.

Invariant: a finding is `confirmed` with threshold N only if a checked launch overflowed in its line
at load N and passed at N - 1, and no program elsewhere in the grid was seen to overflow at N - 1.

Example: arithmetic says 524,289 tokens. The program at the far corner of the grid overflows at
524,289 and passes at 524,288: confirmed. If it passes at both, bisection up to the limit finds the
smallest load at which it does overflow. If a program in the middle of the grid overflows at 524,288
already, the search starts again from there with that program.

Tensors are virtual: as large as the launch needs, with memory for the pages that are touched. The
launches run in forks with a limit on processor time, since a launch may take too long or end its
process; the parent records the reports of each fork and continues with the next launch.
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

from harness.core import child_process
from harness.core.pipes import PipeEnd
from harness.runs.audit.findings import (
    BEYOND_MEMORY,
    CONFIRMED,
    NEEDS_INT64,
    NEVER_EXECUTED,
    AuditFinding,
    FindingKey,
)
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.probe_memory import ADDRESS_SPAN, make_fresh_tensor, make_tensor
from harness.runs.audit.sliced_launch import run_program
from harness.runs.audit.threshold_search import FindingWithLoads, restate_finding
from harness.runs.audit.trial_launches import (
    OVERFLOWS,
    PASSES,
    LaunchDraw,
    find_program,
    iterate_draws,
    list_corners,
    make_recorded_trials,
    make_trial_launch,
)
from harness.sanitizer.check.launcher_state import load_launcher_state
from harness.sanitizer.ir.graph import FileLine

__all__ = [
    "OverflowLauncher",
    "confirm_findings",
    "load_launcher_state",
    "select_observed_findings",
]

# CPU seconds.
_LAUNCH_SECONDS = 1  # limit for one launch and its neighbours
_COMPILE_SECONDS = 3  # limit for a kernel's first launch; later processes load it compiled
_PASSING_SECONDS = 3  # limit for launches of a line that all pass; less for later lines, 1 at least
_NEIGHBOUR_SECONDS = 0.3  # limit for the neighbours of the program that runs
# A line is given up after so many launches that take too long. After twice as many of one kernel,
# each further line gets one launch.
_MAX_SLOW_LAUNCHES = 3
# How often another program may lower the load. Programs that overflow at random would never end.
_MAX_LOWERINGS = 10
# A load; or the load below it and a corner whose program overflows there; or the reason for none.
SearchOutcome = int | str | tuple[int, tuple[int, ...]]
LoadSearch = Callable[["OverflowLauncher", AuditFinding, Mapping[str, int]], int | str]


def confirm_findings(
    kernel: Any, case: KernelCase, findings: list[FindingWithLoads]
) -> list[AuditFinding]:
    """Run the findings; the threshold of a confirmed one is the load that was observed."""
    return _ConfirmationRun(
        kernel, case, findings, _find_least_load, _MAX_SLOW_LAUNCHES, searches_grid=True
    ).run()


def select_observed_findings(
    kernel: Any, case: KernelCase, findings: list[FindingWithLoads]
) -> set[FindingKey]:
    """Select the findings with a launch that overflows, or with none that can run.

    The smallest load is of no interest here, so a single launch that takes too long is enough.
    """
    shown = _ConfirmationRun(kernel, case, findings, _find_any_load, max_slow_launches=1).run()
    return {finding.key for finding in shown if finding.is_observed}


class _ConfirmationRun:
    """The state of a run: the findings of one kernel, launch after launch, in forks."""

    def __init__(
        self,
        kernel: Any,
        case: KernelCase,
        findings: list[FindingWithLoads],
        search: LoadSearch,
        max_slow_launches: int,
        searches_grid: bool = False,
    ) -> None:
        self._kernel, self._case, self._findings = kernel, case, findings
        self._search, self._max_slow_launches = search, max_slow_launches
        self._searches_grid = searches_grid  # True if other programs run one below a load
        self._found_load = 0  # a load that the current fork found, while it searches the grid
        self._draws = list(iterate_draws(case))  # the last one that showed a line is the first
        self.confirmed_findings: list[AuditFinding] = []
        self._slow_launches = 0
        self._wasted_seconds = 0.0  # the time of lines that were given up
        self._compiled_finding = -1  # the last finding whose kernel had the time to compile
        self._start_finding()

    def _start_finding(self) -> None:
        self._remaining_draws = list(self._draws)
        self._slow_launches_here = 0
        self._last_outcome = ""
        self._spent_seconds = 0.0
        self._known_load = 0  # a load at which the next draw overflows
        self._lowerings = 0

    @property
    def _current_index(self) -> int:
        return len(self.confirmed_findings)

    @property
    def _is_done(self) -> bool:
        return self._current_index == len(self._findings)

    def run(self) -> list[AuditFinding]:
        while not self._is_done:
            self._run_fork()
        return self.confirmed_findings

    def _run_fork(self) -> None:
        """Launch in a fork until a launch ends it, or no finding is left."""
        child, pipe = child_process.fork_with_pipe(self._run_launches)
        for line in pipe.iterate_lines():
            match json.loads(line):
                case [int(load)]:
                    self._found_load = load
                case [outcome, seconds]:
                    self._record_outcome(outcome, seconds)
        pipe.close()
        code = child.reap()
        if self._found_load:
            self._record_outcome(self._found_load, 0.0)
        elif not self._is_done:
            self._record_end(is_too_slow=code == -signal.SIGPROF)

    def _run_launches(self, pipe: PipeEnd) -> None:
        """Send, for each draw, the load at which it overflows or why there is none (in a fork)."""
        gc.disable()  # a collection would copy pages; this process lives for seconds
        child_process.discard_stderr()
        while not self._is_done:
            finding, loads = self._findings[self._current_index]
            finding = replace(finding, threshold=self._known_load or finding.threshold)
            launcher = OverflowLauncher(
                self._kernel, self._case, self._remaining_draws[0], {finding.line_key},
                on_compiled=_restart_timer,
            )  # fmt: skip
            is_compiled = self._compiled_finding == self._current_index
            self._compiled_finding = self._current_index
            start = time.process_time()
            seconds = _LAUNCH_SECONDS + (0 if is_compiled else _COMPILE_SECONDS)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            outcome: SearchOutcome = self._search(launcher, finding, loads)
            if self._searches_grid and isinstance(outcome, int):
                _restart_timer()
                pipe.send(json.dumps([outcome]).encode())
                below = {**loads, finding.quantity: outcome - 1}
                if corner := launcher.find_overflowing_corner(below):
                    outcome = outcome - 1, corner
            signal.setitimer(signal.ITIMER_PROF, 0)
            report = outcome, time.process_time() - start
            pipe.send(json.dumps(report).encode())
            self._record_outcome(*report)

    def _record_outcome(self, outcome: SearchOutcome, seconds: float) -> None:
        finding, loads = self._findings[self._current_index]
        draw, known_load = self._remaining_draws.pop(0), self._known_load
        self._known_load = self._found_load = 0
        if not isinstance(outcome, str):
            self._draws = [draw, *(each for each in self._draws if each != draw)]
        if isinstance(outcome, int):
            loads = {**loads, finding.quantity: outcome}
            observed = restate_finding(self._case, finding, loads, outcome)
            self._finish_finding(observed, CONFIRMED, draw, loads)
            return
        self._spent_seconds += seconds
        if not isinstance(outcome, str):
            below, corner = outcome
            outcome = f"one below: {OVERFLOWS}"
            if self._lowerings < _MAX_LOWERINGS and (not known_load or below < known_load):
                self._known_load, self._last_outcome = below, outcome
                self._lowerings += 1
                self._remaining_draws.insert(0, replace(draw, corner=tuple(corner)))
                return
        self._last_outcome = outcome or self._last_outcome
        out_of_time = self._spent_seconds > max(1, _PASSING_SECONDS - self._wasted_seconds)
        if outcome.startswith("cannot") or not self._remaining_draws or out_of_time:
            self._give_up()

    def _record_end(self, is_too_slow: bool) -> None:
        """Record that a launch ended the fork; others with the same contents would end it, too."""
        self._known_load = 0
        self._compiled_finding = self._current_index
        self._slow_launches += 1
        self._slow_launches_here += 1
        self._last_outcome = "too slow to run" if is_too_slow else "it ends the process"
        contents = self._remaining_draws[0].contents
        self._remaining_draws = [
            each for each in self._remaining_draws if each.contents != contents
        ]
        allowed = 2
        if self._spent_seconds:
            allowed = 2 * self._max_slow_launches - self._slow_launches
        allowed = max(1, min(self._max_slow_launches, allowed))
        if not self._remaining_draws or self._slow_launches_here >= allowed:
            self._give_up()

    def _give_up(self) -> None:
        finding, loads = self._findings[self._current_index]
        self._wasted_seconds += self._spent_seconds
        reason = f"not run: {self._last_outcome}" if self._last_outcome else NEVER_EXECUTED
        if self._last_outcome == BEYOND_MEMORY:
            reason = BEYOND_MEMORY
        if self._case.needs_int64(loads):
            reason = NEEDS_INT64
        self._finish_finding(finding, reason, self._draws[0], loads)

    def _finish_finding(
        self, finding: AuditFinding, result: str, draw: LaunchDraw, loads: Mapping[str, int]
    ) -> None:
        trials = make_recorded_trials(self._case, draw, loads, finding.quantity)
        self.confirmed_findings.append(replace(finding, confirmed=result, trials=trials))
        self._start_finding()


def _restart_timer() -> None:
    """Restart the timer, for a compiled launch or for the programs beside it."""
    signal.setitimer(signal.ITIMER_PROF, _LAUNCH_SECONDS)


def _find_least_load(
    launcher: OverflowLauncher, finding: AuditFinding, loads: Mapping[str, int]
) -> int | str:
    """Find the smallest load that overflows; return '' or a reason if none is found.

    The steps away from the threshold double until a load passes and the next one overflows.
    """

    @cache
    def run_load(load: int) -> str:
        return launcher.run({**loads, finding.quantity: load})

    low, high, step = finding.threshold - 1, finding.threshold, 1
    first = run_load(high)
    _restart_timer()
    if first == OVERFLOWS:
        while low > 1 and run_load(low) == OVERFLOWS:
            low, high, step = max(1, low - step), low, 2 * step
    elif first != PASSES:
        return first
    elif run_load(finding.largest) != OVERFLOWS:
        return ""
    else:
        low, high = high, min(high + step, finding.largest)
        while high < finding.largest and run_load(high) != OVERFLOWS:
            step *= 2
            low, high = high, min(high + step, finding.largest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if run_load(middle) == OVERFLOWS else (middle, high)
    below = run_load(low)
    if below == PASSES and launcher.is_beyond_memory({**loads, finding.quantity: low}):
        below = BEYOND_MEMORY
    return high if below == PASSES else below if below == BEYOND_MEMORY else f"one below: {below}"


def _find_any_load(
    launcher: OverflowLauncher, finding: AuditFinding, loads: Mapping[str, int]
) -> int | str:
    """Find any load that overflows; return '' or a reason if none is found."""
    for load in (finding.threshold, finding.largest):
        outcome = launcher.run({**loads, finding.quantity: load})
        _restart_timer()
        if outcome != PASSES:
            return load if outcome == OVERFLOWS else outcome
    return ""


class OverflowLauncher:
    """Launches of one kernel at different loads, with the overflows of some lines reported."""

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
        accesses = case.access_graph.accesses
        has_atomics = any(access.name.startswith("tt.atomic") for access, _ in accesses)
        self._make_tensor = make_fresh_tensor if has_atomics else make_tensor

    def is_beyond_memory(self, loads: Mapping[str, int]) -> bool:
        """Return whether any access of the kernel leaves the address space of its tensor."""
        return (
            self._case.can_access_beyond(loads, ADDRESS_SPAN)
            and self.run(loads, all_accesses=True) == BEYOND_MEMORY
        )

    def find_overflowing_corner(self, loads: Mapping[str, int]) -> tuple[int, ...]:
        """Find a corner of the grid whose program overflows alone, within the time limit.

        Each batch is as large as the speed of the last one allows.
        """
        grid = make_trial_launch(self._case, self._draw, loads).grid
        corners, count = list_corners(grid, self._draw.corner), 1
        now = time.process_time()
        deadline = now + _NEIGHBOUR_SECONDS
        while corners and count > 0:
            batch, corners = corners[:count], corners[count:]
            if corner := self._bisect_corners(loads, batch, deadline):
                return corner
            before, now = now, time.process_time()
            per_corner = max(1e-4, now - before) / len(batch)
            count = min(2 * count, int((deadline - now) / per_corner))
        return ()

    def _bisect_corners(
        self, loads: Mapping[str, int], corners: Sequence[tuple[int, ...]], deadline: float
    ) -> tuple[int, ...]:
        """Find the overflowing corner by halves: a launch ends with its first report."""
        if time.process_time() > deadline:
            return ()
        outcome = self.run(loads, corners=corners)
        if outcome == PASSES:
            return ()
        if len(corners) == 1:
            return corners[0] if outcome == OVERFLOWS else ()
        half = len(corners) // 2
        first = self._bisect_corners(loads, corners[:half], deadline)
        return first or self._bisect_corners(loads, corners[half:], deadline)

    def run(
        self,
        loads: Mapping[str, int],
        all_accesses: bool = False,
        corners: Iterable[tuple[int, ...]] = (),
    ) -> str:
        """Run the program of the draw, or the programs at these corners."""
        launch = make_trial_launch(self._case, self._draw, loads)
        return run_program(
            self._kernel,
            launch,
            self._lines,
            all_accesses,
            self._make_tensor,
            self._case,
            None if all_accesses else self._on_compiled,
            [find_program(launch.grid, corner) for corner in corners],
        )
