"""Findings run on a GPU: launches in real memory, with checks compiled in.

Findings come in with their launches, one below the threshold and at it; what each showed goes out,
a line each. This process never uses CUDA: forks do, which compile side by side and launch one after
the other. One that loses the device, or never ends, costs its finding alone: another fork goes on.
A launch that is too large or too slow as a whole is made of some programs of the grid.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import pickle
import selectors
import signal
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from harness.core import child_process, processes
from harness.core.child_process import ProcessHandle
from harness.core.pipes import PipeEnd
from harness.kernels.gpu import DEFAULT_CHECKS, LINE_CHECK, SUBGRID_CHECK, compiler_hooks
from harness.kernels.gpu.checked_launches import PROCESS_REPORTS, CheckedLauncher
from harness.kernels.gpu.subgrid import Subgrid
from harness.patching import jit_kernels as patching
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
from harness.runs.audit.trial_launches import (
    OVERFLOWS,
    PASSES,
    TORCH_TYPES,
    clamp_to_dtype,
    list_sample_programs,
    make_call_arguments,
)

_DEVICE = "cuda"
_LAUNCH_STEP, _COMPILE_STEP = "a launch", "its compilation"
# Seconds, at first, as others wait meanwhile; and once nothing else is left to run.
_STEP_SECONDS = {_COMPILE_STEP: (30, 240), _LAUNCH_STEP: (2, 40)}
_PROCESS_ENDED = "it ends the process"
_PROCESS_BYTES = 1 << 30  # bytes of the device that each process takes besides tensors
_MAX_PROGRAMS = (1 << 31) - 1  # of a grid: Triton's launcher counts no further
_SITE_MASK = 0xFFFF  # of a report's word: the wrap, if it is one
StepListener = Callable[[str], None]  # a step


@dataclass(frozen=True, slots=True)
class FindingOrder:
    """What a fork is to run: findings by their numbers, of a kernel that is compiled once."""

    numbers: tuple[int, ...]
    slow_step: str = ""  # the step that it was ended in before


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    processes.die_with_parent(os.getppid())
    asked = pickle.load(sys.stdin.buffer)
    answers = os.dup(1)
    os.dup2(2, 1)  # Triton prints what it likes
    findings = dict(asked["findings"])
    groups: dict[Any, list[int]] = {}
    for number, finding in findings.items():
        groups.setdefault(_make_compilation_key(finding), []).append(number)
    with tempfile.NamedTemporaryFile() as turn, open(answers, "w", buffering=1) as told:
        card = _GpuLauncher(asked["place"], asked["jobs"], Path(turn.name))
        crew = _GpuForkPool(card, findings, asked["jobs"], told)
        crew.run(groups.values(), time.monotonic() + asked["seconds"])


def _make_compilation_key(finding: AuditFinding) -> tuple[str, ...]:
    given = finding.trials[-1].arguments
    constants = (f"{one.name}={one.value!r}" for one in given if one.kind == "constexpr")
    return finding.module, finding.kernel, *constants


@dataclass(slots=True)
class _GpuFork:
    process: ProcessHandle
    pipe: PipeEnd
    remaining: list[int] = field(default_factory=list)
    slow_step: str = ""  # as its order has it
    step: str = ""  # what it has begun

    def assign(self, order: FindingOrder) -> None:
        self.remaining, self.slow_step, self.step = list(order.numbers), order.slow_step, ""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is heard next
            self.pipe.send(json.dumps([order.numbers, order.slow_step]).encode())

    @property
    def remaining_order(self) -> FindingOrder:
        """What is left of it."""
        return FindingOrder(tuple(self.remaining), self.slow_step)


class _GpuForkPool:
    """Forks, so many at a time, and what they say."""

    def __init__(
        self, card: _GpuLauncher, findings: Mapping[int, AuditFinding], jobs: int, answers: IO[str]
    ) -> None:
        self._card, self._findings, self._jobs, self._answers = card, findings, jobs, answers
        self._selector = selectors.DefaultSelector()
        self._waiting_orders: deque[FindingOrder] = deque()
        self._late_orders: deque[FindingOrder] = deque()  # what took longer than others can wait

    def run(self, groups: Iterable[list[int]], deadline: float) -> None:
        self._waiting_orders += (FindingOrder(tuple(group)) for group in groups)
        while time.monotonic() < deadline and self._assign_orders():
            for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                self._read_messages(key.data)
        for child in self._list_forks():
            child.process.send_signal(signal.SIGKILL)
            self._waiting_orders.append(child.remaining_order)
            self._reap_fork(child)
        for order in (*self._waiting_orders, *self._late_orders):
            words = (
                f"{_describe_timeout(order.slow_step, False)}, and {NO_TIME}"
                if order.slow_step
                else NO_TIME
            )
            self._write_answers(order.numbers, words)

    def _assign_orders(self) -> bool:
        """Work for every fork that has none; whether any is at work."""
        idle = [one for one in self._list_forks() if not one.remaining]
        while queue := self._waiting_orders or self._late_orders:
            if not idle and len(self._list_forks()) == self._jobs:
                return True
            (idle.pop() if idle else self._start_fork()).assign(queue.popleft())
        return any(one.remaining for one in self._list_forks())

    def _list_forks(self) -> list[_GpuFork]:
        return [key.data for key in self._selector.get_map().values()]

    def _write_answers(self, numbers: Iterable[int], words: str) -> None:
        for number in numbers:
            self._answers.write(json.dumps([number, words]) + "\n")

    def _start_fork(self) -> _GpuFork:
        serve = functools.partial(_serve_orders, self._card, self._findings)
        child = _GpuFork(*child_process.fork_with_pipe(serve, new_session=True))
        self._selector.register(child.pipe.read_end, selectors.EVENT_READ, child)
        return child

    def _read_messages(self, child: _GpuFork) -> None:
        """Answers, what is begun, or the end; then what is left waits for another fork."""
        for line in child.pipe.receive_lines():
            match json.loads(line):
                case {"step": str(step)}:
                    child.step = step
                case {"said": str(words)}:
                    self._write_answers([child.remaining.pop(0)], words)
        if not child.pipe.is_peer_closed:
            return
        code = self._reap_fork(child)
        if code and child.remaining:
            self._blame(child, code)
        if child.remaining:
            self._waiting_orders.appendleft(child.remaining_order)

    def _blame(self, child: _GpuFork, code: int) -> None:
        """What it ended in is not run again; what it was too slow with, once, later."""
        slow = code == -signal.SIGALRM
        alike = len(child.remaining) if slow and child.step == _COMPILE_STEP else 1
        ended, child.remaining = child.remaining[:alike], child.remaining[alike:]
        if slow and child.step != child.slow_step != _LAUNCH_STEP:
            self._late_orders.append(FindingOrder(tuple(ended), child.step))
        else:
            self._write_answers(
                ended, _describe_timeout(child.step, True) if slow else _PROCESS_ENDED
            )

    def _reap_fork(self, child: _GpuFork) -> int:
        self._selector.unregister(child.pipe.read_end)
        child.pipe.close()
        code = child.process.reap()
        with contextlib.suppress(ProcessLookupError):  # an assembler that it started may go on
            os.killpg(child.process.pid, signal.SIGKILL)
        return code


def _describe_timeout(step: str, is_extended: bool) -> str:
    return f"{step} takes more than {_STEP_SECONDS[step][is_extended]} s"


# In a fork


def _serve_orders(card: _GpuLauncher, findings: Mapping[int, AuditFinding], pipe: PipeEnd) -> None:
    """Of each finding what its launches showed, until one loses the device."""
    while not pipe.is_peer_closed:
        for numbers, slow in map(json.loads, pipe.receive_lines()):
            begins = functools.partial(_begin_step, pipe, bool(slow))
            for number in numbers:
                said = _run_finding(card, findings[number], begins, whole_grid=slow != _LAUNCH_STEP)
                signal.setitimer(signal.ITIMER_REAL, 0)
                pipe.send(json.dumps({"said": said}).encode())
                if card.is_device_lost or _is_device_lost(said):
                    return


def _begin_step(pipe: PipeEnd, is_extended: bool, step: str) -> None:
    pipe.send(json.dumps({"step": step}).encode())
    signal.setitimer(signal.ITIMER_REAL, _STEP_SECONDS[step][is_extended])


def _run_finding(
    card: _GpuLauncher, finding: AuditFinding, on_step: StepListener, whole_grid: bool
) -> str:
    try:
        return card.confirm_finding(finding, on_step, whole_grid)
    except Exception as error:
        words = str(error).strip().splitlines()
        return f"{type(error).__name__}: {words[-1] if words else ''}"[:160]


class _GpuLauncher:
    """This GPU, as a fork uses it."""

    def __init__(self, location: Path, jobs: int, turn_file: Path) -> None:
        self._location, self._jobs, self._turn_file = location, jobs, turn_file
        self._kernels: dict[tuple[str, str], Any] = {}
        self.is_device_lost = False  # or who knows what is still held

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
        """That it is confirmed, or why not; `whole`: by all programs of the launch."""
        below, at = finding.trials
        needed = sum(map(_count_bytes, at.arguments))
        if needed > self._available_bytes:
            return f"its tensors take {needed / 2**30:,.0f} GiB"
        whole_grid = whole_grid and math.prod(at.grid) <= _MAX_PROGRAMS
        on_step(_COMPILE_STEP)
        self._launcher.checked_line = finding.line
        kernel = self._load_kernel(finding.module, finding.kernel)
        for launch in (below, at):  # with no programs it is only compiled
            kernel[(0, 0, 0)](**make_call_arguments(launch, _make_placeholder))
        if why := self._launcher.find_refusal(kernel):
            return f"no checks can be compiled into it: {why}"
        with self._hold_gpu(at, needed) as tensors:

            def shown(launch: TrialLaunch) -> str:
                _fill_tensors(tensors, launch)
                on_step(_LAUNCH_STEP)
                line = Path(finding.file).name, finding.line
                return self._run_launch(kernel, launch, tensors, line, whole_grid)

            first = shown(below)
            if first != PASSES:
                return f"one below it {first}"
            second = shown(at)
        if second == PASSES:
            return (
                PASSED_AT_THRESHOLD
                if whole_grid
                else f"{PASSED_AT_THRESHOLD}, as far as programs ran"
            )
        return CONFIRMED if whole_grid else CONFIRMED_IN_PART

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
        """The launch's tensors, while no other fork launches anything."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        with self._turn_file.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            while (
                torch.cuda.mem_get_info()[0] < needed_bytes + _PROCESS_BYTES // 4
            ):  # one that ended had it
                time.sleep(0.02)
            try:
                tensors = {
                    one.name: torch.empty(
                        _round_up_elements(one), dtype=_to_dtype(one), device=_DEVICE
                    )
                    for one in launch.arguments
                    if one.kind.startswith("*")
                }
                yield tensors
            except Exception:
                self.is_device_lost = True  # the error's frames hold what it took
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
        arguments = make_call_arguments(launch, lambda one: tensors[one.name])
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
        wrapped = [
            compiler_hooks.load_sites(note.compiled_kernel, "wraps")[number - 1].source
            for record, note in PROCESS_REPORTS.read_new_reports()
            if (number := record.word & _SITE_MASK)
        ]
        PROCESS_REPORTS.reset()
        return OVERFLOWS if line in [(Path(one.file).name, one.line) for one in wrapped] else PASSES


def _is_device_lost(words: str) -> bool:
    return "CUDA error" in words or "Triton Error [CUDA]" in words


def _make_unspecialized(kernel: Any) -> Any:
    """Compiled once for all numbers: whether 16 divides one changes no address."""
    names = [one.name for one in kernel.params if not one.is_constexpr]
    return patching.make_similar_kernel(kernel, kernel.fn, names, names)


def _to_dtype(argument: LaunchArgument) -> torch.dtype:
    return TORCH_TYPES[argument.kind[1:]]


def _round_up_elements(argument: LaunchArgument) -> int:
    return argument.elements + argument.elements % 2


def _count_bytes(argument: LaunchArgument) -> int:
    return (
        _round_up_elements(argument) * _to_dtype(argument).itemsize
        if argument.kind.startswith("*")
        else 0
    )


def _make_placeholder(argument: LaunchArgument) -> torch.Tensor:
    return torch.empty(16, dtype=_to_dtype(argument), device=_DEVICE)


def _fill_tensors(tensors: Mapping[str, torch.Tensor], launch: TrialLaunch) -> None:
    for one in launch.arguments:
        if not one.kind.startswith("*"):
            continue
        tensor = tensors[one.name]
        if one.holds is None:
            tensor.view(torch.uint8).zero_()
            continue
        both = [clamp_to_dtype(number, tensor.dtype) for number in one.holds]
        # Made there: what is copied to a device is made as large as its place on the host first.
        tensor.view(-1, 2).copy_(torch.tensor(both, dtype=tensor.dtype, device=_DEVICE))


if __name__ == "__main__":
    main()
