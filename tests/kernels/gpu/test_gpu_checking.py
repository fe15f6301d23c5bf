"""Compiled kernels under check: guard zones, fences, what was not written, a lost device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from harness import checking, paths
from harness.checking import FenceCrossed, OutOfBounds, Unwritten

pytestmark = pytest.mark.needs_cuda


@triton.jit
def copy(source, target, count, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < count)
    tl.store(target + at + shift, value, mask=at < count)


def check() -> Any:
    return checking.checked("cuda")


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32, device="cuda")


def test_a_right_kernel_leaves_its_result_where_it_belongs() -> None:
    both = torch.zeros(48, dtype=torch.int32, device="cuda")
    with check() as held:
        copy[(3,)](numbers(24), both[:24], 24, 0, BLOCK=8)
        assert [(launch.kernel, launch.grid) for launch in held.launches] == [("copy", (3, 1, 1))]
    assert both.tolist() == [*range(24), *[0] * 24]


@pytest.mark.parametrize(("shift", "told"), [(4, "past the end"), (-4, "before the start")])
def test_a_write_outside_lands_in_a_guard_zone(shift: int, told: str) -> None:
    with pytest.raises(OutOfBounds, match=f"copy wrote {told} of target") as caught, check():
        copy[(3,)](numbers(24), numbers(24), 24, shift, BLOCK=8)
    assert "bytes changed, the nearest 0 bytes away" in str(caught.value)


def test_a_neighbours_row_must_not_change() -> None:
    rows = torch.zeros((4, 8), dtype=torch.int32, device="cuda")
    with check() as held:
        held.fence(rows, write=lambda x, y, z: x)
        copy[(3,)](numbers(24), rows, 24, 0, BLOCK=8)
        with pytest.raises(FenceCrossed, match="copy wrote element 24 of target's storage"):
            copy[(3,)](numbers(24) + 1, rows, 24, 2, BLOCK=8)
        held.forgive()


def test_what_was_not_written_is_found() -> None:
    with check() as held:
        target = torch.empty(24, dtype=torch.int32, device="cuda")
        copy[(2,)](numbers(24), target, 24, 0, BLOCK=8)
        held.written(target, slice(0, 16))
        with pytest.raises(Unwritten, match="8 of 24 elements"):
            held.written(target)


LOST = """
import torch
from test_gpu_checking import copy
from harness import checking

try:
    with checking.checked("cuda"):
        tensor = torch.arange(24, dtype=torch.int32, device="cuda")
        copy[(3,)](tensor, tensor.clone(), 24, 2**45, BLOCK=8)
except checking.LostDevice as error:
    print("lost:", error)
"""


def test_a_device_that_is_lost_is_said_with_the_launch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parent), str(paths.project()), os.environ.get("PYTHONPATH", "")]
            ),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "lost: copy[3, 1, 1]: CUDA error" in done.stdout, done.stderr
    assert "source int32 [24]" in done.stdout
