"""A finding's stored launches are repeated by forks, in tensors of their size."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from calling import PATIENCE_SECONDS, wait_until
from cpu_runs import find_violations, run_on_cpu  # noqa: F401
from small_release import MODULE, list_findings, write_release

from harness.checking import IntegerOverflow, virtual_zeros
from harness.core import processes
from harness.runs.audit import gpu_worker, lazy_release
from harness.runs.audit.findings import LaunchArgument
from harness.runs.audit.sliced_launch import run_program
from harness.runs.audit.trial_launches import OVERFLOWS, PASSES, TORCH_TYPES
from harness.sanitizer.gpu import DEFAULT_CHECKS, LINE_CHECK, checked_launches
from harness.sanitizer.triton import recorded_launches


@triton.jit
def two_lines(target, row, stride):
    tl.store(target + row * stride, 1)
    tl.store(target + row * 512, 2)


@triton.jit
def a_row(target, start, BLOCK: tl.constexpr):
    offsets = start + tl.arange(0, BLOCK)
    tl.store(target + offsets, 1)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("release"))


def make_virtual_tensor(argument: LaunchArgument) -> torch.Tensor:
    dtype = TORCH_TYPES[argument.kind[1:]]
    tensor = virtual_zeros((argument.elements,), dtype)
    if argument.holds:
        few = min(argument.elements, 1 << 16)
        tensor[:few] = torch.tensor(argument.holds, dtype=dtype).repeat(few)[:few]
    return tensor


@pytest.mark.parametrize(
    ("kernel", "count"),
    [("row_in_32_bits", 1), ("carried", 1), ("where_another_is_empty", 1), ("two_lines", 2)],
)
def test_one_below_passes_and_at_it_wraps(release: Path, kernel: str, count: int) -> None:
    loaded = lazy_release.LazyRelease(release).load_kernel(MODULE, kernel)
    findings = list_findings(release, kernel)
    assert len(findings) == count
    for finding in findings:
        assert [
            run_program(loaded, trial, {finding.line_key}, tensor_factory=make_virtual_tensor)
            for trial in finding.trials
        ] == [PASSES, OVERFLOWS]


def test_a_tensor_is_as_large_as_one_below_comes_to(release: Path) -> None:
    [finding] = list_findings(release, "row_in_32_bits")
    rows, width = 2**31 // 4096, 4096
    sizes = {argument.name: argument.elements for argument in finding.trials[0].arguments}
    assert finding.threshold == rows + 1
    assert (rows - 1) * width < sizes["out_ptr"] <= (rows + 1) * width


@pytest.mark.parametrize(("row", "wrong"), [(1 << 20, [0]), (1 << 23, [0, 1])])
def test_overflow_counts_at_one_line_alone(
    monkeypatch: pytest.MonkeyPatch, row: int, wrong: list[int]
) -> None:
    """Each line is reported though the other overflows too; with neither checked, none is."""
    first = two_lines.starting_line_number + 2
    for number, line in enumerate((first, first + 1, first + 7)):
        found = find_violations(
            two_lines, torch.zeros(4, dtype=torch.int32), row, 4096,
            checks=(*DEFAULT_CHECKS, LINE_CHECK), line=line,
        )  # fmt: skip
        overflows = [violation for violation in found if isinstance(violation, IntegerOverflow)]
        assert [violation.location.line for violation in overflows if violation.location] == [
            line
        ] * (number in wrong)


@pytest.mark.parametrize(("start", "wraps"), [((1 << 31) - 32, True), (64, False)])
def test_a_row_overflows_at_the_line_of_its_sum_and_nothing_else_is_reported(
    start: int, wraps: bool
) -> None:
    """Out-of-bounds reports would take the records that the overflow needs."""
    line = a_row.starting_line_number + 2
    target = torch.zeros(16, dtype=torch.int32)
    found = find_violations(
        a_row, target, start, BLOCK=64, checks=(*DEFAULT_CHECKS, LINE_CHECK), line=line
    )
    places = [
        violation.location.line
        for violation in found
        if isinstance(violation, IntegerOverflow) and violation.location
    ]
    assert places == [line] * wraps
    assert len(found) == len(places)


# Forks


Confirm = Callable[[int, gpu_worker.StepListener, bool], str]  # takes a finding's number


class FakeLauncher:
    """A `_GpuLauncher` of findings that are numbers; some of them lose the device."""

    def __init__(self, confirm: Confirm, lost: tuple[int, ...]) -> None:
        self._confirm, self._lost = confirm, lost
        self.is_device_lost = False

    def confirm_finding(self, number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        self.is_device_lost = number in self._lost
        return self._confirm(number, on_step, whole)


def run_pool(
    confirm: Confirm, groups: int, seconds: float, lost: tuple[int, ...] = (), jobs: int = 2
) -> dict[int, str]:
    answers_file = io.StringIO()
    launcher: Any = FakeLauncher(confirm, lost)
    findings: Any = {number: number for number in range(2 * groups)}
    pool = gpu_worker._GpuForkPool(launcher, findings, jobs, answers_file)
    work = [[2 * group, 2 * group + 1] for group in range(groups)]
    pool.run(work, time.monotonic() + seconds)
    answers = [json.loads(line) for line in answers_file.getvalue().splitlines()]
    assert len(answers) == len(findings)
    with pytest.raises(ChildProcessError):  # no fork is left
        os.waitpid(-1, os.WNOHANG)
    return dict(answers)


def test_forks_answer_one_order_after_the_other() -> None:
    found = run_pool(lambda number, *more: f"{number} by {os.getpid()}", 20, PATIENCE_SECONDS)
    forks = {words.partition(" by ")[2] for words in found.values()}
    assert [found[number].partition(" ")[0] for number in range(40)] == [*map(str, range(40))]
    assert len(forks) == 2


def too_slow() -> None:
    os.kill(os.getpid(), signal.SIGALRM)


def test_a_finding_that_ends_its_fork_costs_no_other_anything() -> None:
    def confirm(number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        if number == 2:
            os._exit(1)
        return "said"

    assert run_pool(confirm, 3, PATIENCE_SECONDS) == dict.fromkeys(range(6), "said") | {
        2: "it ends the process"
    }


def test_what_others_would_wait_for_is_run_once_nothing_else_is_left() -> None:
    """It gets the time that it needs; a finding that needs still more gets that as its answer."""
    tries = [multiprocessing.Value("i", 0) for _ in range(6)]
    order = multiprocessing.Value("i", 0)

    def confirm(number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        on_step("a launch")
        tries[number].value += 1
        if number == 5 or (number == 0 and tries[number].value == 1):
            too_slow()
        order.value += 1
        return str(order.value)

    found = run_pool(confirm, 3, PATIENCE_SECONDS, jobs=1)
    assert found.pop(5) == "a launch takes more than 40 s"
    assert found == {1: "1", 2: "2", 3: "3", 4: "4", 0: "5"}
    assert [count.value for count in tries] == [2, 1, 1, 1, 1, 2]


def test_what_is_compiled_alike_is_as_slow_to_compile() -> None:
    tries = multiprocessing.Value("i", 0)

    def confirm(number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        on_step("its compilation")
        tries.value += 1
        too_slow()
        return ""

    words = "its compilation takes more than 240 s"
    assert run_pool(confirm, 1, PATIENCE_SECONDS) == dict.fromkeys(range(2), words)
    assert tries.value == 2


def test_a_launch_that_is_too_slow_is_made_in_part() -> None:
    """Its compilation was too slow as well; other launches of its kernel stay whole."""
    tries = multiprocessing.Value("i", 0)

    def confirm(number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        if number == 0:
            tries.value += 1
            if tries.value < 3:
                on_step("its compilation" if tries.value == 1 else "a launch")
                too_slow()
        return f"whole: {whole}"

    assert run_pool(confirm, 1, PATIENCE_SECONDS) == {0: "whole: False", 1: "whole: True"}


def test_what_a_fork_has_started_ends_with_it(tmp_path: Path) -> None:
    def confirm(number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        if number:
            return "said"
        began = subprocess.Popen(["sleep", "600"])
        (tmp_path / "began").write_text(str(began.pid))
        os._exit(1)

    assert run_pool(confirm, 1, PATIENCE_SECONDS) == {0: "it ends the process", 1: "said"}
    began = int((tmp_path / "began").read_text())
    wait_until(lambda: not processes.read_resident_bytes(began))


def test_a_step_has_its_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_worker, "_STEP_SECONDS", {"a launch": (0.1, 2.5)})

    def confirm(number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        on_step("a launch")
        time.sleep(0.3 if number == 0 else 600 * (number == 1))
        return "said"

    words = "a launch takes more than 2.5 s"
    assert run_pool(confirm, 2, PATIENCE_SECONDS) == {0: "said", 1: words, 2: "said", 3: "said"}


def test_what_loses_the_device_leaves_the_rest_to_another_fork() -> None:
    found = run_pool(lambda *arguments: str(os.getpid()), 2, PATIENCE_SECONDS, lost=(0, 3), jobs=1)
    assert found[0] != found[1] == found[2] == found[3]


def test_what_has_not_begun_in_time_is_not_run() -> None:
    found = run_pool(lambda *arguments: str(time.sleep(600)), 3, 0.2)
    assert found == dict.fromkeys(range(6), "there was no time left for it")


def test_a_slow_finding_without_time_left_is_answered_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time runs out when the first finding begins anew, however fast the machine is."""
    tries = [multiprocessing.Value("i", 0) for _ in range(2)]
    is_over = multiprocessing.Value("i", 0)
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * is_over.value)
    monkeypatch.setattr(gpu_worker, "time", clock)

    def confirm(number: int, on_step: gpu_worker.StepListener, whole: bool) -> str:
        is_over.value = tries[number].value
        on_step("a launch")
        if tries[number].value:
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(600)
        tries[number].value += 1
        too_slow()
        return ""

    words = "a launch takes more than 2 s, and there was no time left for it"
    # One fork: with two, the first finding could begin anew before the other one was slow.
    found = run_pool(confirm, 1, PATIENCE_SECONDS, jobs=1)
    assert found == dict.fromkeys(range(2), words)


def test_launches_on_a_gpu_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "launches"
    monkeypatch.setenv(recorded_launches.RECORD_VARIABLE, str(file))
    launcher = checked_launches.CheckedLauncher()
    monkeypatch.setattr(launcher, "find_refusal", lambda *call: "nothing runs here")
    monkeypatch.setattr(launcher, "_original_run", lambda *args, **options: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for row in (3, 5):
        launcher.run(two_lines, (torch.zeros(4), row, 1), (1,), False, {})
    [[mode]] = recorded_launches.read_launch_modes(file).values()
    assert mode.types == {"target": "*fp32", "row": "i32", "stride": "i32"}
