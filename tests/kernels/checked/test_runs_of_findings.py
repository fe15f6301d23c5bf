"""What a run of a finding gives a kernel: its own reading, and memory as far as it comes."""

from __future__ import annotations

import ast
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from harness.audit import confirming, limits, rooms, worker
from harness.audit.case import Case
from harness.audit.changed import Kernels
from harness.audit.collecting import Kernel
from harness.audit.findings import WIDER, Argument, Finding
from harness.audit.loading import World
from harness.audit.trials import drawn
from harness.kernels import frontend
from tests.audit.conftest import KERNELS, LIMITS, SIZES

MODULE = "sglang.srt.kernels"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    package = tmp_path / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(KERNELS)
    (package / "sizes.py").write_text(SIZES)
    confirming.make_ready()
    return tmp_path


def read(folder: Path, name: str) -> tuple[Any, Case]:
    world = World(folder)
    module = world.module(MODULE)
    assert module is not None
    functions = (one for one in module.code.body if isinstance(one, ast.FunctionDef))
    node = next(one for one in functions if one.name == name)
    found = worker.Read()
    next(worker.cases(world, Kernel(MODULE, node), limits.read(LIMITS), found))
    loaded, case = found.cases[0]
    return loaded, case


def test_a_number_that_is_1_does_not_have_a_kernel_read_again(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton would compile it into the kernel, for each such launch anew."""
    loaded, case = read(release, "row_in_32_bits")
    line = next(one.source for one in case.graph.operations() if one.name == "tt.store")
    lines = {(line.file, line.line)}
    first = next(iter(drawn(case)))
    launching = confirming.Launching(loaded, case, first, lines)

    def refused(kernel: Any, bound: Any) -> str:
        raise AssertionError("it is read again")

    monkeypatch.setattr(frontend, "generic_text", refused)
    assert launching.outcome(dict.fromkeys(case.used, 1)) == confirming.PASSES
    assert launching.outcome(case.largest()) == confirming.WRAPS


def test_a_tensor_holds_its_numbers_as_far_as_a_launch_comes() -> None:
    def held(elements: int, *numbers: int) -> list[int]:
        argument = Argument("far", "*i64", elements=elements, holds=(numbers[0], numbers[1]))
        tensor = rooms.repeated(argument)
        places = (0, 1, elements - 2, elements - 1)
        return [int(tensor[one]) for one in places]

    assert held(1_000, 3, 5) == [3, 5, 3, 5]
    assert held(10_000_000, 3, 5) == [3, 5, 3, 5]  # further than one piece of it
    assert held(1_000, 7, 9) == [7, 9, 7, 9]
    assert held(10_000_000, 7, 9) == [7, 9, 7, 9]


def confirmed_in(folder: Path, name: str) -> list[Finding]:
    kernels = Kernels(folder, "sources")
    [kernel] = kernels.named(name)
    return list(worker.read_in(kernels.world, kernel, limits.read(LIMITS)).findings.values())


def test_what_was_found_stands_though_others_take_too_long(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_ever(launching: Any, at: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr(confirming.Launching, "elsewhere", for_ever)
    [found] = confirmed_in(release, "row_in_32_bits")
    assert found.is_confirmed
    assert [trial.grid[0] for trial in found.trials] == [found.threshold - 1, found.threshold]


def test_a_program_that_wraps_or_not_as_it_likes_ends_the_search(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said to wrap one below each load from which on it was seen to."""
    calls = multiprocessing.Value("i", 0)

    def always(launching: Any, at: Any) -> tuple[int, ...]:
        calls.value += 1
        return (1, 0, 0) if calls.value < 200 else ()

    monkeypatch.setattr(confirming.Launching, "elsewhere", always)
    [found] = confirmed_in(release, "row_in_32_bits")
    assert (found.confirmed, calls.value < 200) == ("not run: one below: wraps", True)


def test_a_number_that_triton_gives_64_bits_is_no_finding_of_a_kernel_that_is_not_run(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least load by arithmetic is one that another compiled kernel runs."""
    monkeypatch.setattr(confirming, "_least", lambda launching, finding, at: "cannot follow it")
    [narrow] = confirmed_in(release, "row_in_32_bits")
    assert (narrow.confirmed, narrow.is_seen) == ("not run: cannot follow it", True)
    [wide] = confirmed_in(release, "behind_what_is_counted")
    assert (wide.confirmed, wide.is_seen) == (WIDER, False)


def test_programs_that_wrap_now_and_then_end_the_search(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One below each load that is found there is another that wraps, and so on down to nothing."""
    looked = multiprocessing.Value("i", 0)

    def least(launching: Any, finding: Finding, at: Any) -> int:
        looked.value += 1
        return finding.threshold

    def another(launching: Any, at: Any) -> tuple[int, ...]:
        return (1, 0, 0) if looked.value < 5000 else ()

    monkeypatch.setattr(confirming, "_least", least)
    monkeypatch.setattr(confirming.Launching, "elsewhere", another)
    [found] = confirmed_in(release, "row_in_32_bits")
    assert (found.confirmed, looked.value < 100) == ("not run: one below: wraps", True)
