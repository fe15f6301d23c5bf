"""The result of a finding's two launches on a GPU, with a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.runs.audit import gpu_worker
from harness.runs.audit.findings import (
    CONFIRMED,
    CONFIRMED_IN_PART,
    AuditFinding,
    LaunchArgument,
    TrialLaunch,
)
from harness.sanitizer.ir.operation_sites import OperationSite

LINE = 7
ROOM = 1 << 20


def make_launch(rows: int, elements: int = 9, programs: int = 4, at: int = 0) -> TrialLaunch:
    pages = LaunchArgument("pages", "*i32", elements=3, holds=(0, rows))
    arguments = (
        LaunchArgument("x", "*bf16", elements=elements),
        pages,
        LaunchArgument("rows", "i32", rows),
    )
    return TrialLaunch((programs, 1, 1), (at, 0, 0), arguments)


def make_finding(*trials: TrialLaunch) -> AuditFinding:
    whole: Any = dict.fromkeys(AuditFinding.__slots__, "")
    return AuditFinding(**whole | {"file": "/there/kernels.py", "line": LINE, "trials": trials})


class SimulatedKernel:
    """A simulated kernel that overflows at these loads, at this line, in any program or in one."""

    def __init__(
        self, wraps: set[int], place: tuple[str, int], refused: str = "", alone: int | None = None
    ) -> None:
        self.wraps, self.place, self.refused, self.alone = wraps, place, refused, alone
        self.subgrid: Any = None
        self.launches: list[tuple[tuple[int, ...], dict[str, Any]]] = []
        self.reports: list[Any] = []
        self.checked_line = 0
        self.error = ""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run_launch(**arguments: Any) -> None:
            copies = {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in arguments.items()
            }
            self.launches.append((grid, copies))
            first = self.subgrid.first_program[0] if grid[0] else 0
            here = self.alone is None or first <= self.alone < first + grid[0]
            if grid[0] and here and arguments["rows"] in self.wraps:
                if self.error:
                    raise RuntimeError(self.error)
                arguments["pages"].fill_(99)  # must not affect the next launch
                self.reports.append(
                    (SimpleNamespace(word=1), SimpleNamespace(compiled_kernel=self))
                )

        return run_launch

    def find_any_refusal(self, kernel: Any) -> str:
        return self.refused


Confirm = Callable[..., tuple[str, gpu_worker._GpuLauncher]]


@pytest.fixture
def confirm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Confirm:
    """Confirms a finding with a simulated kernel; returns the answer and the launcher."""
    monkeypatch.setattr(gpu_worker, "_DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(gpu_worker.signal, "setitimer", lambda *arguments: None)

    def confirm_finding(
        kernel: SimulatedKernel, *trials: TrialLaunch, whole: bool = True
    ) -> tuple[str, gpu_worker._GpuLauncher]:
        reports = SimpleNamespace(
            read_new_reports=lambda: kernel.reports, reset=lambda: kernel.reports.clear()
        )
        monkeypatch.setattr(gpu_worker, "PROCESS_REPORTS", reports)
        file, line = kernel.place
        source: Any = SimpleNamespace(file=file, line=line)
        sites = [OperationSite("*", "i32", source, None)]
        monkeypatch.setattr(gpu_worker.compiler_hooks, "load_sites", lambda compiled, which: sites)
        turn = tmp_path / "turn"
        turn.touch()
        launcher = gpu_worker._GpuLauncher(tmp_path, 1, turn)
        vars(launcher).update(_launcher=kernel, _available_bytes=ROOM, _kernels={("", ""): kernel})
        answer = launcher.confirm_finding(make_finding(*trials), lambda step: None, whole)
        return answer, launcher

    return confirm_finding


HERE = ("/elsewhere/kernels.py", LINE)


@pytest.mark.parametrize(
    ("wraps", "place", "refused", "words"),
    [
        ({6}, HERE, "", CONFIRMED),
        (set(), HERE, "", "at it passes"),
        ({5, 6}, HERE, "", "one below it overflows"),
        ({6}, ("/elsewhere/kernels.py", LINE + 1), "", "at it passes"),
        ({6}, ("/elsewhere/others.py", LINE), "", "at it passes"),
        ({6}, HERE, "it uses tt.descriptor_load", "no checks can be compiled into it: it uses"),
    ],
)
def test_it_is_confirmed_where_one_below_passes_and_it_wraps_at_it(
    confirm: Confirm,
    wraps: set[int],
    place: tuple[str, int],
    refused: str,
    words: str,
) -> None:
    kernel = SimulatedKernel(wraps, place, refused)
    found, _ = confirm(kernel, make_launch(5), make_launch(6))
    assert found.startswith(words)
    assert (found == CONFIRMED) == (words == CONFIRMED)


def test_what_does_not_fit_is_not_launched(confirm: Confirm) -> None:
    kernel = SimulatedKernel({6}, HERE)
    found, _ = confirm(kernel, make_launch(5), make_launch(6, elements=ROOM))
    assert found.startswith("its tensors take")
    assert kernel.launches == []


@pytest.mark.parametrize(("programs", "whole"), [(1 << 31, True), (4000, False)])
@pytest.mark.parametrize(
    ("alone", "runs"),
    [(0, True), (1, True), (7, True), (0.5, True), (-2, True), (-1, True), (8, False), (-3, False)],
)
def test_of_a_launch_that_is_too_large_or_too_slow_some_programs_run(
    confirm: Confirm,
    programs: int,
    whole: bool,
    alone: float,
    runs: bool,
) -> None:
    """The program that ran elsewhere, the first two, the last two, and the middle one."""
    program = int(alone * programs) if alone == 0.5 else int(alone) % programs
    kernel = SimulatedKernel({6}, HERE, alone=program)
    both = (make_launch(rows, programs=programs, at=7) for rows in (5, 6))
    found, _ = confirm(kernel, *both, whole=whole)
    assert found == (CONFIRMED_IN_PART if runs else "at it passes, as far as programs ran")
    assert {grid for grid, _ in kernel.launches[2:]} == {(1, 1, 1)}
    assert kernel.subgrid.grid_shape == (programs, 1, 1)


def test_tensors_hold_what_the_launch_says_each_time(confirm: Confirm) -> None:
    kernel = SimulatedKernel({5, 6}, ("/elsewhere/others.py", LINE))
    confirm(kernel, make_launch(5), make_launch(6))
    compiled, real = kernel.launches[:2], kernel.launches[2:]
    assert [grid for grid, _ in compiled] == [(0, 0, 0)] * 2
    assert [arguments["rows"] for _, arguments in real] == [5, 6]
    for _, arguments in real:
        assert arguments["pages"].tolist() == [0, arguments["rows"]] * 2
        assert arguments["x"].tolist() == [0.0] * 10


def test_a_launch_that_loses_the_device_shows_it_as_well(confirm: Confirm) -> None:
    kernel = SimulatedKernel({6}, HERE)
    kernel.error = "Triton Error [CUDA]: an illegal memory access was encountered"
    found, card = confirm(kernel, make_launch(5), make_launch(6))
    assert (found, card.is_device_lost) == (CONFIRMED, True)
    kernel.error = "out of memory"
    with pytest.raises(RuntimeError):
        confirm(kernel, make_launch(5), make_launch(6))
