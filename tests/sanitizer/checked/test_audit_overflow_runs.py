"""Launches that confirm overflow findings: their compiled kernels, tensors and search."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from small_release import list_findings, write_release

from harness.runs.audit import kernel_reading, overflow_runs, probe_memory, size_limits
from harness.runs.audit.findings import NEEDS_INT64, AuditFinding, LaunchArgument
from harness.runs.audit.release_kernels import ReleaseKernels
from harness.runs.audit.trial_launches import OVERFLOWS, PASSES, iterate_draws
from harness.sanitizer.triton import frontend


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_release(tmp_path)


def test_an_argument_of_1_does_not_compile_the_kernel_again(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton would compile a 1 into the kernel, and so compile it again for such a launch."""
    overflow_runs.load_launcher_state()
    kernels, reading = ReleaseKernels(release, "sources"), kernel_reading.KernelReading()
    [kernel] = kernels.find_by_name("row_in_32_bits")
    limits = size_limits.read_limits()
    next(kernel_reading.iterate_cases(kernels.release, kernel, limits, reading))
    loaded, case = reading.cases[0]
    [line] = (
        operation.source.line_key for operation in case.graph.walk() if operation.name == "tt.store"
    )
    draw = next(iter(iterate_draws(case)))
    launcher = overflow_runs.OverflowLauncher(loaded, case, draw, {line})

    def fail_if_read(kernel: Any, bound: Any) -> str:
        raise AssertionError("it is read again")

    monkeypatch.setattr(frontend, "compile_to_mlir", fail_if_read)
    assert launcher.run(dict.fromkeys(case.used_quantities, 1)) == PASSES
    assert launcher.run(case.make_largest_loads()) == OVERFLOWS


def test_a_patterned_tensor_alternates_its_values_to_the_end() -> None:
    def read_ends(elements: int, *numbers: int) -> list[int]:
        argument = LaunchArgument("far", "*i64", elements=elements, holds=(numbers[0], numbers[1]))
        tensor = probe_memory.make_patterned_tensor(argument)
        places = (0, 1, elements - 2, elements - 1)
        return [int(tensor[place]) for place in places]

    assert read_ends(1_000, 3, 5) == [3, 5, 3, 5]
    assert read_ends(10_000_000, 3, 5) == [3, 5, 3, 5]  # more than one piece of it away
    assert read_ends(1_000, 7, 9) == [7, 9, 7, 9]
    assert read_ends(10_000_000, 7, 9) == [7, 9, 7, 9]


def test_a_confirmed_finding_stands_if_the_search_takes_too_long(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_ever(launching: Any, at: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr(overflow_runs, "_LAUNCH_SECONDS", 0.3)
    monkeypatch.setattr(overflow_runs.OverflowLauncher, "find_overflowing_corner", for_ever)
    [found] = list_findings(release, "row_in_32_bits")
    assert found.is_confirmed
    assert [trial.grid[0] for trial in found.trials] == [found.threshold - 1, found.threshold]


def test_a_program_that_overflows_irregularly_ends_the_search(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also overflows one below each load that the search finds."""
    calls = multiprocessing.Value("i", 0)

    def always(launching: Any, at: Any) -> tuple[int, ...]:
        calls.value += 1
        return (1, 0, 0) if calls.value < 200 else ()

    monkeypatch.setattr(overflow_runs.OverflowLauncher, "find_overflowing_corner", always)
    [found] = list_findings(release, "row_in_32_bits")
    assert (found.confirmed, calls.value < 200) == ("not run: one below: overflows", True)


def test_an_int64_argument_is_no_finding_in_a_kernel_that_is_not_run(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the smallest load by arithmetic another specialization of the kernel runs."""
    monkeypatch.setattr(
        overflow_runs, "_find_least_load", lambda launching, finding, at: "cannot follow it"
    )
    [narrow] = list_findings(release, "row_in_32_bits")
    assert (narrow.confirmed, narrow.is_observed) == ("not run: cannot follow it", True)
    [wide] = list_findings(release, "behind_what_is_counted")
    assert (wide.confirmed, wide.is_observed) == (NEEDS_INT64, False)


def test_programs_that_overflow_irregularly_end_the_search(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each load found has a smaller one at which another program overflows, and so on."""
    looked = multiprocessing.Value("i", 0)

    def least(launching: Any, finding: AuditFinding, at: Any) -> int:
        looked.value += 1
        return finding.threshold

    def another(launching: Any, at: Any) -> tuple[int, ...]:
        return (1, 0, 0) if looked.value < 5000 else ()

    monkeypatch.setattr(overflow_runs, "_find_least_load", least)
    monkeypatch.setattr(overflow_runs.OverflowLauncher, "find_overflowing_corner", another)
    [found] = list_findings(release, "row_in_32_bits")
    assert (found.confirmed, looked.value < 100) == ("not run: one below: overflows", True)
