"""What a run of a finding gives a kernel: its own reading, and memory as far as it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.audit import confirming, limits, rooms, worker
from harness.audit.collecting import Kernel
from harness.audit.examining import Case
from harness.audit.findings import Argument
from harness.audit.loading import World
from harness.audit.trials import drawn
from harness.kernels import frontend
from tests.audit.conftest import KERNELS, LIMITS, SIZES

MODULE = "sglang.srt.kernels"


def read(folder: Path, name: str) -> tuple[Any, Case]:
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(KERNELS)
    (package / "sizes.py").write_text(SIZES)
    world = World(folder)
    module = world.module(MODULE)
    assert module is not None
    node = next(one for one in module.code.body if getattr(one, "name", "") == name)
    found = worker.Read()
    next(worker.cases(world, Kernel(MODULE, node), limits.read(LIMITS), found))
    loaded, case = found.cases[0]
    return loaded, case


def test_a_number_that_is_1_does_not_have_a_kernel_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton would compile it into the kernel, for each such launch anew."""
    confirming.make_ready()
    loaded, case = read(tmp_path, "row_in_32_bits")
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
