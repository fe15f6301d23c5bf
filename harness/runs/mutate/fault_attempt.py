"""One attempt on a fault, in a process of its own: runs guards in order until one fails.

The result of a guard is written to a file before the next guard starts. If the process ends, the
first guard without a result is the one that ended it. Example: guards 4, 7 and 2 run, and the file
has the results of 4 and 7; guard 2 ended the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.core import preparation
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.core.outcomes import Outcome
from harness.fixes.matching.toggle_status import ToggleState
from harness.fixes.patch_plan import Direction, PlacedFault, ToggleChoice
from harness.fixes.registry.schema import CodeTarget
from harness.guards import cells, hypothesis_adapter, plugin, profiles, repeat, run_item
from harness.patching import cuda_modules, cuda_sources, live_engine
from harness.runs.mutate.messages import (
    OUTCOMES_RUN_ALONE,
    PASSING_OUTCOMES,
    FaultAttemptReport,
    FaultAttemptRequest,
    GuardRequest,
    GuardResult,
    GuardTrace,
)
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import RepeatMode, SideResult
from harness.toggles import ToggleContext
from harness.workers import device_tests, supervisor
from harness.workers.line_tracer import LineTracer, select_package_files

# For one build or compilation: the guard's own timer allows it to each. The attempt as a whole has
# it once for each guard, and only for a fault in C++: builds that together take longer end there.
PREPARATION_SECONDS = 300.0


def make_live_change(fault: MutationFault) -> PlacedFault:
    """Make a change for the live engine from a fault."""
    target = CodeTarget(fault.module, fault.qualname)
    return PlacedFault(
        fault.id, fault.words, target, fault.start, fault.end, fault.before, fault.after
    )


class PreparedGuard:
    """A test with its toggles."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        marks = cells.read_guard_marks(item)
        self.reverted_toggles = marks.always_reverted if marks else ()
        # The guarded fixes that this release lacks; the test fails without them.
        self.enabled_fixes = tuple(
            ToggleChoice(toggle, Direction.ENABLE)
            for toggle in (marks.guarded if marks else ())
            if cells.find_toggle_state(toggle).state is ToggleState.BUGGY
        )

    def build_changed_code(self) -> None:
        """Apply the toggles and remove them, so that later forks find the code compiled."""
        with (
            # A warning must not stop an import.
            warnings.catch_warnings(action="ignore"),
            ToggleContext(self.enabled_fixes),
            cells.revert_where_present(self.reverted_toggles),
        ):
            pass


class FaultAttemptRun:
    """An attempt inside its fork."""

    def __init__(
        self,
        request: FaultAttemptRequest,
        guards: list[PreparedGuard],
        folder: Path,
        listener: run_item.PhaseRecorder,
    ) -> None:
        self.request = request
        self.guards = guards
        self.folder = folder
        self.listener = listener
        self.changes = (make_live_change(request.fault),) if request.fault is not None else ()
        self.failed: tuple[GuardRequest, SideResult] | None = None  # the guard that failed

    def run(self) -> SideResult:
        try:
            with warnings.catch_warnings(action="ignore"):
                live_engine.engine.enter(self.changes)
        except UnfixError as error:
            _get_record_file(self.folder, self.request.serial, "not_live").write_text(str(error))
            return SideResult("", Outcome.PASSED)
        pid = os.getpid()
        file = _get_record_file(self.folder, self.request.serial, "ended")
        with open(file, "ab", buffering=0) as ended:
            for guard in self.request.guards:
                result = self._run_guard(guard)
                if os.getpid() != pid:  # in a fork by the guard that did not exit
                    os._exit(supervisor.INTERNAL_FAILURE_EXIT_CODE)
                if cuda_modules.BUILD_FAILURES:
                    why = f"does not compile: {cuda_modules.BUILD_FAILURES[0]}"
                    _get_record_file(self.folder, self.request.serial, "not_live").write_text(why)
                    break
                if cuda_modules.MACHINE_FAILURES:
                    why = f"the build failed: {cuda_modules.MACHINE_FAILURES[0]}"
                    result.side.outcome, result.side.headline = Outcome.LOST, why
                ended.write(msgspec.json.encode(result) + b"\n")
                if result.side.outcome not in PASSING_OUTCOMES:
                    self.failed = guard, result.side
                    break
            else:
                reach = cuda_modules.REACH
                is_same = reach.unchanged_launches and not reach.changed_launches
                if is_same and not self._count_runs():
                    # Of a template, instantiations that no guard launches may differ.
                    why = "the launched modules have the same code"
                    _get_record_file(self.folder, self.request.serial, "unreached").write_text(why)
        return SideResult("", Outcome.PASSED)

    # In a process for many attempts

    def take_back(self) -> str:
        """Remove the fault; return why this process cannot go on, or an empty string."""
        try:
            live_engine.engine.leave(self.changes)
        except Exception as error:
            return f"the fault cannot be removed: {error}"
        if self.request.fault is not None and is_cpp_path(self.request.fault.module):
            return "modules with the fault are loaded"
        if cuda_modules.BUILD_FAILURES or cuda_modules.MACHINE_FAILURES:
            return "a build failed"
        if self.failed is not None and self.failed[1].outcome in OUTCOMES_RUN_ALONE:
            return f"{self.failed[1].outcome}: {self.failed[1].headline}"
        return ""

    def repeat_without_fault(self) -> bool:
        """Run what failed again, now that the fault is removed, and record how it ends.

        It passes unless this process holds more than the fault that makes it fail.
        """
        if self.failed is None or not self.changes:
            return False
        guard, side = self.failed
        request, pid = self.request, os.getpid()
        mode, blob = request.repeat_mode, request.blob
        if mode is RepeatMode.WHOLE and side.way in (RepeatMode.EXAMPLE, RepeatMode.EXPLICIT):
            mode, blob = side.way, side.blob
        for mode_of_repeat in dict.fromkeys((mode, RepeatMode.WHOLE)):
            repeat_request = msgspec.structs.replace(
                request, fault=None, repeat_mode=mode_of_repeat, blob=blob
            )
            repeat_run = FaultAttemptRun(repeat_request, self.guards, self.folder, self.listener)
            outcome = repeat_run._run_guard(guard).side.outcome
            if os.getpid() != pid:  # in a fork by the guard that did not exit
                os._exit(supervisor.INTERNAL_FAILURE_EXIT_CODE)
            if mode_of_repeat is not RepeatMode.EXAMPLE or outcome is not Outcome.NA:
                break  # else the example cannot be drawn without the fault
        _get_record_file(self.folder, request.serial, "without").write_text(outcome.value)
        return True

    def _count_runs(self) -> int:
        return live_engine.engine.reach(self.changes)

    def _run_guard(self, guard_request: GuardRequest) -> GuardResult:
        guard = self.guards[guard_request.guard_number]
        if conflict := self._find_conflict(guard):
            return GuardResult(
                guard_request.guard_number, SideResult("", Outcome.PASSED), conflict=conflict
            )
        item: Any = guard.item
        item.config.stash[plugin.APPLIED_CHANGES] = guard.enabled_fixes
        before = self._count_runs()
        if self.request.random_seed is not None:
            repeat.seed_random_sources(self.request.random_seed)
        with (
            self._choose_examples(item),
            _limit_time(guard_request.seconds),
            self._trace_lines() as traced,
        ):
            side = device_tests.run_protocol(item, self.listener)
        side.way = repeat.choose_repeat_mode(item, side)
        if self.request.repeat_mode is RepeatMode.EXAMPLE:
            side = _judge_repeated_example(side)
        if traced is not None:
            _get_record_file(self.folder, self.request.serial, "traced").write_bytes(
                msgspec.json.encode(traced)
            )
        return GuardResult(guard_request.guard_number, side, self._count_runs() - before)

    def _choose_examples(self, item: Any) -> contextlib.AbstractContextManager[None]:
        request = self.request
        if request.repeat_mode is RepeatMode.EXAMPLE:
            return hypothesis_adapter.pin_example(item.obj, request.blob)
        if request.repeat_mode is RepeatMode.EXPLICIT:
            return profiles.restrict_to_explicit_examples(item.obj)
        return profiles.extend_search(item.obj, request.example_factor, request.keep_shrinking)

    def _find_conflict(self, guard: PreparedGuard) -> str:
        """Return why a guard's toggles and the fault cannot be applied together, or ''."""
        try:
            if self.changes:
                guard.build_changed_code()
        except UnfixError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def _trace_lines(self) -> Iterator[GuardTrace | None]:
        """Record the lines that run, if the request has `trace`, as tracing is slow."""
        if not self.request.trace:
            yield None
            return
        before = set(sys.modules)
        root = find_package_root()
        tracer = LineTracer(select_package_files(root))
        traced = GuardTrace({}, [])
        launched: dict[str, set[int]] = {}
        cuda_modules.REACH.recorded_lines = launched
        with tracer.trace():
            yield traced
        cuda_modules.REACH.recorded_lines = None
        for file, lines in tracer.lines.items():
            module = ".".join(file.relative_to(root).with_suffix("").parts)
            if lines:
                traced.lines[module.removesuffix(".__init__")] = sorted(lines)
        for name, lines in launched.items():
            if path := cuda_sources.find_package_path(name):
                traced.lines[path] = sorted(lines)
        new = set(sys.modules) - before
        traced.imported = sorted(name for name in new if name.partition(".")[0] == "sglang")


def _judge_repeated_example(side: SideResult) -> SideResult:
    """Return the result of one example: Hypothesis raises if it passes or cannot be drawn."""
    if side.outcome is not Outcome.ERROR or not side.headline.startswith("DidNotReproduce"):
        return side
    passes = hypothesis_adapter.PASSED_PHRASE in side.headline + side.detail
    outcome = Outcome.PASSED if passes else Outcome.NA
    return SideResult("", outcome, side.seconds, headline=side.headline)


def find_package_root() -> Path:
    """Return the folder of the release's package."""
    source = live_engine.engine.sources.read("sglang")
    assert source is not None
    return Path(source.path).parents[1]


@contextlib.contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    """End this process if the block takes too long, and print its stacks.

    What is built or compiled meanwhile, for the changed code, has a limit of its own.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    timer = _GuardTimer(seconds)
    preparation.LISTENERS.append(timer.stop_during_preparation)
    try:
        yield
    finally:
        preparation.LISTENERS.remove(timer.stop_during_preparation)
        timer.end()


class _GuardTimer:
    """The timer of a guard's time, which stops while any thread builds.

    It is that of one process: a fork inherits the listener and no timer, so it has no limit here.
    """

    def __init__(self, seconds: float) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._builds = 0  # that run now
        self._has_ended = False
        self._left = 0.0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    @contextlib.contextmanager
    def stop_during_preparation(self) -> Iterator[None]:
        """Stop the guard's time during the block, which has PREPARATION_SECONDS."""
        if os.getpid() != self._pid:
            yield
            return
        with self._lock:
            if not self._has_ended:
                left, _ = signal.setitimer(signal.ITIMER_REAL, PREPARATION_SECONDS)
                if self._builds == 0:
                    self._left = left
            self._builds += 1
        try:
            yield
        finally:
            if os.getpid() == self._pid:  # no fork inside the block
                with self._lock:
                    self._builds -= 1
                    if self._builds == 0 and not self._has_ended:
                        signal.setitimer(signal.ITIMER_REAL, max(self._left, 0.001))

    def end(self) -> None:
        """Stop the timer for good; a build of another thread may still run."""
        if os.getpid() == self._pid:
            with self._lock:
                self._has_ended = True
                signal.setitimer(signal.ITIMER_REAL, 0)


def read_attempt_report(
    folder: Path, request: FaultAttemptRequest, fork_side: SideResult
) -> FaultAttemptReport:
    """Read the report of an attempt from the files of its fork."""
    report = FaultAttemptReport(request.serial, [], fork_side, fork_side.reach)
    for line in _read_record(folder, request.serial, "ended").splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # the fork ended in the middle of a line
            report.results.append(msgspec.json.decode(line, type=GuardResult))
    report.not_live_reason = _read_record(folder, request.serial, "not_live").decode()
    report.unreached_reason = _read_record(folder, request.serial, "unreached").decode()
    if traced := _read_record(folder, request.serial, "traced"):
        report.trace = msgspec.json.decode(traced, type=GuardTrace)
    return report


def is_failure_doubtful(folder: Path, request: FaultAttemptRequest, fork_side: SideResult) -> bool:
    """Return whether an earlier attempt in the same process could explain how a guard ended.

    It could not if the guard passed in that process once the fault was removed. Of a guard that
    hung, lacked memory or was lost, the run decides: it runs alone again in any case.
    """
    report = read_attempt_report(folder, request, fork_side)
    ends = [*(result.side for result in report.results), fork_side]
    failing = next((side for side in ends if side.outcome not in PASSING_OUTCOMES), None)
    if failing is None:
        return False
    if request.fault is None:
        return True
    without = _read_record(folder, request.serial, "without").decode()
    passed = without == Outcome.PASSED.value  # one that skips itself has checked nothing
    return not passed and failing.outcome not in OUTCOMES_RUN_ALONE


def _get_record_file(folder: Path, serial: int, kind: str) -> Path:
    return folder / f"{serial}.{kind}"


def _read_record(folder: Path, serial: int, kind: str) -> bytes:
    try:
        return _get_record_file(folder, serial, kind).read_bytes()
    except FileNotFoundError:
        return b""
