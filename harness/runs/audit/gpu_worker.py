"""Runs findings on a GPU: launches in real memory, with checks compiled in.

The request has findings, each with two launches: the largest passing size, and the threshold. An
answer is a line with a finding's number and the result. Invariant: each finding gets one answer,
whatever its launches do. This process never uses CUDA. Its forks do: they compile side by side and
take turns on the device. If a fork loses the device or hangs, only its present finding is lost, and
another fork continues with the rest. Example: a launch takes longer than 2 s. The fork is killed;
the finding waits until no other is left, and then has 40 s for some programs of its grid.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import pickle
import signal
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from harness.core import processes
from harness.core.pipes import PipeEnd
from harness.runs.audit import lazy_release
from harness.runs.audit.findings import (
    CONFIRMED,
    CONFIRMED_IN_PART,
    NO_TIME,
    PASSED_AT_THRESHOLD,
    AuditFinding,
    LaunchArgument,
    TrialLaunch,
)
from harness.runs.audit.gpu_fork import FindingOrder, GpuFork
from harness.runs.audit.trial_launches import (
    OVERFLOWS,
    PASSES,
    TORCH_TYPES,
    fill_tensors,
    list_sample_programs,
    make_call_arguments,
)
from harness.sanitizer.gpu import DEFAULT_CHECKS, LINE_CHECK, SUBGRID_CHECK, compiler_hooks
from harness.sanitizer.gpu.checked_launches import CheckedLauncher
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS
from harness.sanitizer.gpu.program_grid import Subgrid
from harness.sanitizer.triton import jit_kernels
from harness.sanitizer.violations.kinds import OVERFLOW_MASK
from harness.workers.engine import Assignment, Engine, WorkerEnd, WorkPool

_DEVICE = "cuda"
_LAUNCH_STEP, _COMPILE_STEP = "a launch", "its compilation"
# Seconds at first, while other findings wait, and once no other is left.
_STEP_SECONDS = {_COMPILE_STEP: (30, 240), _LAUNCH_STEP: (2, 40)}
_PROCESS_ENDED = "it ends the process"
_PROCESS_BYTES = 1 << 30  # device memory of each process, besides its tensors
_MAX_PROGRAMS = (1 << 31) - 1  # the largest grid that Triton's launcher counts
_MAX_ERROR_LENGTH = 160
StepListener = Callable[[str], None]


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    processes.die_with_parent(os.getppid())
    request = pickle.load(sys.stdin.buffer)
    output = os.dup(1)  # Triton prints to 1, which becomes the log
    os.dup2(2, 1)
    findings = dict(request["findings"])
    groups: dict[Any, list[int]] = {}
    for number, finding in findings.items():
        groups.setdefault(_make_compilation_key(finding), []).append(number)
    with tempfile.NamedTemporaryFile() as turn, open(output, "w", buffering=1) as answers:
        launcher = _GpuLauncher(request["location"], request["jobs"], Path(turn.name))
        pool = _GpuForkPool(launcher, findings, request["jobs"], answers)
        pool.run(groups.values(), time.monotonic() + request["seconds"])


def _make_compilation_key(finding: AuditFinding) -> tuple[str, ...]:
    arguments = finding.trials[-1].arguments
    constants = (f"{each.name}={each.value!r}" for each in arguments if each.kind == "constexpr")
    return finding.module, finding.kernel, *constants


class _GpuForkPool(WorkPool[FindingOrder, bytes]):
    """The forks that run findings, a fixed number at a time."""

    shares_workers = False
    may_end_idle = True  # a fork that has lost the device ends after its answer
    repeats_lost_items = False  # a fork runs one launch at a time, which is to blame

    def __init__(
        self,
        launcher: _GpuLauncher,
        findings: Mapping[int, AuditFinding],
        jobs: int,
        answers: IO[str],
    ) -> None:
        super().__init__("the GPU", jobs)
        self.is_collected = True
        self._serve = functools.partial(_serve_orders, launcher, findings)
        self._answers = answers
        self._late_orders: deque[FindingOrder] = deque()  # too slow while others waited

    def run(self, groups: Iterable[list[int]], deadline: float) -> None:
        self.waiting += (FindingOrder(tuple(group)) for group in groups)
        for _ in Engine([self], self.jobs).iterate_turns():
            if time.monotonic() > deadline:
                break
        for each in self.running.values():
            self.waiting.append(each.worker.remaining_order)
        self.end_workers()
        for order in (*self.waiting, *self._late_orders):
            slow = f"{_describe_timeout(order.slow_step, False)}, and " if order.slow_step else ""
            self._write_answers(order.numbers, slow + NO_TIME)

    def start_worker(self) -> GpuFork:
        return GpuFork(self._serve)

    def count_workers(self) -> int:
        return min(self.jobs, len(self.waiting) + len(self._late_orders) + len(self.running))

    def refill(self) -> None:
        if self._late_orders:
            self.waiting.append(self._late_orders.popleft())

    def send_item(self, assignment: Assignment[FindingOrder]) -> None:
        assignment.worker.assign(assignment.item)

    def handle_message(self, worker: GpuFork, message: bytes) -> None:
        match json.loads(message):
            case {"step": str(step)}:
                worker.step = step
            case {"result": str(result)}:
                self._write_answers([worker.remaining.pop(0)], result)
                if not worker.remaining:
                    (assignment,) = self.list_running(worker)
                    self.finish(assignment.serial)

    def record_loss(self, lost: Assignment[FindingOrder], end: WorkerEnd) -> None:
        """Answer for the finding that ended a fork, and queue the rest of its order again."""
        if end.code:
            self._blame(lost.worker, end.code)
        if lost.worker.remaining:
            self.waiting.appendleft(lost.worker.remaining_order)

    def _blame(self, fork: GpuFork, code: int) -> None:
        """Answer for the finding that ended a fork; a slow one runs once more at the end."""
        slow = code == -signal.SIGALRM
        count = len(fork.remaining) if slow and fork.step == _COMPILE_STEP else 1
        ended, fork.remaining = fork.remaining[:count], fork.remaining[count:]
        if slow and fork.step != fork.slow_step != _LAUNCH_STEP:
            self._late_orders.append(FindingOrder(tuple(ended), fork.step))
        else:
            reason = _describe_timeout(fork.step, True) if slow else _PROCESS_ENDED
            self._write_answers(ended, reason)

    def _write_answers(self, numbers: Iterable[int], words: str) -> None:
        for number in numbers:
            self._answers.write(json.dumps([number, words]) + "\n")


def _describe_timeout(step: str, is_extended: bool) -> str:
    return f"{step} takes more than {_STEP_SECONDS[step][is_extended]} s"


# In a fork


def _serve_orders(
    launcher: _GpuLauncher, findings: Mapping[int, AuditFinding], pipe: PipeEnd
) -> None:
    """Run findings and send each result, until one loses the device."""
    while not pipe.is_peer_closed:
        for numbers, slow_step in map(json.loads, pipe.receive_lines()):
            on_step = functools.partial(_begin_step, pipe, bool(slow_step))
            for number in numbers:
                whole_grid = slow_step != _LAUNCH_STEP
                result = _run_finding(launcher, findings[number], on_step, whole_grid)
                signal.setitimer(signal.ITIMER_REAL, 0)
                pipe.send(json.dumps({"result": result}).encode())
                if launcher.is_device_lost or _is_device_lost(result):
                    return


def _begin_step(pipe: PipeEnd, is_extended: bool, step: str) -> None:
    pipe.send(json.dumps({"step": step}).encode())
    signal.setitimer(signal.ITIMER_REAL, _STEP_SECONDS[step][is_extended])


def _run_finding(
    launcher: _GpuLauncher, finding: AuditFinding, on_step: StepListener, whole_grid: bool
) -> str:
    try:
        return launcher.confirm_finding(finding, on_step, whole_grid)
    except Exception as error:  # any error of Triton or CUDA is the answer
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:_MAX_ERROR_LENGTH]


class _GpuLauncher:
    """Launches on this GPU, in a fork."""

    def __init__(self, location: Path, jobs: int, turn_file: Path) -> None:
        self._location, self._jobs, self._turn_file = location, jobs, turn_file
        self._kernels: dict[tuple[str, str], Any] = {}
        self.is_device_lost = False  # also True if an error left its memory allocated

    @functools.cached_property
    def _launcher(self) -> CheckedLauncher:
        launcher = CheckedLauncher((*DEFAULT_CHECKS, LINE_CHECK, SUBGRID_CHECK), strict=True)
        launcher.start()
        return launcher

    @functools.cached_property
    def _release(self) -> lazy_release.LazyRelease:
        return lazy_release.LazyRelease(self._location)

    @functools.cached_property
    def _available_bytes(self) -> int:
        return int(torch.cuda.mem_get_info()[1]) - self._jobs * _PROCESS_BYTES

    def confirm_finding(
        self, finding: AuditFinding, on_step: StepListener, whole_grid: bool
    ) -> str:
        """Run both launches with all programs of the grid or some; return the result."""
        below, at = finding.trials
        needed = sum(map(_count_bytes, at.arguments))
        if needed > self._available_bytes:
            return f"its tensors take {needed / 2**30:,.0f} GiB"
        whole_grid = whole_grid and math.prod(at.grid) <= _MAX_PROGRAMS
        on_step(_COMPILE_STEP)
        self._launcher.checked_line = finding.line
        kernel = self._load_kernel(finding.module, finding.kernel)
        for launch in (below, at):  # a launch without programs is only compiled
            kernel[(0, 0, 0)](**make_call_arguments(launch, _make_placeholder))
        if refusal := self._launcher.find_any_refusal(kernel):
            return f"no checks can be compiled into it: {refusal}"
        with self._hold_gpu(at, needed) as tensors:

            def run_trial(launch: TrialLaunch) -> str:
                fill_tensors(tensors, launch)
                on_step(_LAUNCH_STEP)
                line = Path(finding.file).name, finding.line
                return self._run_launch(kernel, launch, tensors, line, whole_grid)

            result_below = run_trial(below)
            if result_below != PASSES:
                return f"one below it {result_below}"
            passes = run_trial(at) == PASSES
        if whole_grid:
            return PASSED_AT_THRESHOLD if passes else CONFIRMED
        return f"{PASSED_AT_THRESHOLD}, as far as programs ran" if passes else CONFIRMED_IN_PART

    def _load_kernel(self, module: str, name: str) -> Any:
        if (module, name) not in self._kernels:
            self._kernels[module, name] = _make_unspecialized(
                self._release.load_kernel(module, name)
            )
        return self._kernels[module, name]

    @contextlib.contextmanager
    def _hold_gpu(
        self, launch: TrialLaunch, needed_bytes: int
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Allocate the launch's tensors while no other fork launches anything."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        with self._turn_file.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            # The driver frees the memory of an ended fork a moment later.
            while torch.cuda.mem_get_info()[0] < needed_bytes + _PROCESS_BYTES // 4:
                time.sleep(0.02)
            try:
                tensors = {
                    each.name: torch.empty(
                        _round_up_elements(each), dtype=_to_dtype(each), device=_DEVICE
                    )
                    for each in launch.arguments
                    if each.kind.startswith("*")
                }
                yield tensors
            except Exception:
                self.is_device_lost = True  # the error's frames keep the tensors alive
                raise
            tensors.clear()
            if not self.is_device_lost:
                torch.cuda.empty_cache()

    def _run_launch(
        self,
        kernel: Any,
        launch: TrialLaunch,
        tensors: Mapping[str, torch.Tensor],
        line: tuple[str, int],
        whole_grid: bool,
    ) -> str:
        starts = [(0, 0, 0)] if whole_grid else list_sample_programs(launch)
        arguments = make_call_arguments(launch, lambda argument: tensors[argument.name])
        try:
            for start in starts:
                self._launcher.subgrid = Subgrid(start, launch.grid)
                kernel[launch.grid if whole_grid else (1, 1, 1)](**arguments)
            torch.cuda.synchronize()
        except RuntimeError as error:
            if not _is_device_lost(str(error)):
                raise
            self.is_device_lost = True
            return "loses the device"
        sources = [
            compiler_hooks.load_sites(note.compiled_kernel, "overflows")[number - 1].source
            for record, note in PROCESS_REPORTS.read_new_reports()
            if (number := record.word & OVERFLOW_MASK)
        ]
        PROCESS_REPORTS.reset()
        lines = [(Path(source.file).name, source.line) for source in sources]
        return OVERFLOWS if line in lines else PASSES


def _is_device_lost(words: str) -> bool:
    return "CUDA error" in words or "Triton Error [CUDA]" in words


def _make_unspecialized(kernel: Any) -> Any:
    """Compile once for all numbers: divisibility by 16 changes no address."""
    names = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
    return jit_kernels.make_similar_kernel(kernel, kernel.fn, names, names)


def _to_dtype(argument: LaunchArgument) -> torch.dtype:
    return TORCH_TYPES[argument.kind[1:]]


def _round_up_elements(argument: LaunchArgument) -> int:
    return argument.elements + argument.elements % 2


def _count_bytes(argument: LaunchArgument) -> int:
    if not argument.kind.startswith("*"):
        return 0
    return int(_round_up_elements(argument) * _to_dtype(argument).itemsize)


def _make_placeholder(argument: LaunchArgument) -> torch.Tensor:
    return torch.empty(16, dtype=_to_dtype(argument), device=_DEVICE)


if __name__ == "__main__":
    main()
