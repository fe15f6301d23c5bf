"""Kernels with checks in, run on this machine: they tell what is wrong, and of nothing else.

The CPU's executor runs the rewritten graph; what a GPU's assembly puts down is or-ed into a tensor
here. It finds nothing to refuse in it: what would be outside was taken out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings

from harness import kernels
from harness.checking import launching as here
from harness.checking.launches import Launches
from harness.checking.memory import Memory
from harness.compiled import CHECKS, launching, rewriting, triton_side
from harness.compiled.reporting import SITES
from harness.compiled.telling import Teller
from harness.kernels import flow
from harness.kernels.graph import Kind
from harness.native import programs

sys.path.insert(0, str(Path(__file__).parents[1] / "checked"))
import kernels_to_check as known
import tiles
from test_rewriting import product, reset, stepped, while_it_lasts


@triton.jit
def while_it_grows(target, step, turns):
    at, turn = 0, 0
    while turn < turns:
        at += step
        turn += 1
    tl.store(target + at, 1)


@triton.jit
def of_sums(target, parts, count, N: tl.constexpr):
    lane = tl.arange(0, N)
    at = tl.cumsum(tl.load(parts + lane), 0)
    tl.store(target + at, 1, mask=lane < count)


def programs_made(folder: str, key: str, make: Any) -> Any:
    return make()


def put_down(teller: Any, told: Any) -> None:
    code = teller._code
    at = code.binary("addi", teller._report, code.constant(4 * told.site, Kind("i64")))
    pointer = code.emit("tt.int_to_ptr", (at,), Kind("ptr<i32>"))
    code.emit(
        "tt.atomic_rmw",
        (code.splat(pointer, told.word.kind.shape), told.word),
        told.word.kind,
        atomic_rmw_op="2 : i32",
        sem="4 : i32",
        scope="1 : i32",
    )


@pytest.fixture(autouse=True, scope="module")
def without_a_gpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teller, "put_down", put_down)
        patch.setattr(programs, "kept", programs_made)
        yield


def told(kernel: Any, *args: Any, **named: Any) -> tuple[bool, bool]:
    """Whether an access was outside, and whether an integer had wrapped."""
    pointers, _ = launching.flattened(kernel, args, named)
    twin = _twin(kernel, len(pointers))
    words = torch.zeros(SITES, dtype=torch.int32)
    whole = words.data_ptr(), 1, *(pointer.reach for pointer in pointers), *args
    graph = kernels.read(twin, whole, named)
    checked = rewriting.rewritten(graph, len(pointers), 128, CHECKS).graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here.kernels, "graph_of", lambda *bound: checked)
        patch.setattr(flow, "addressing", lambda graph: flow.Addressing({}, frozenset()))
        with here.Session(Memory(), Launches(), exact=False, trusting=True) as session:
            session.launch(twin, whole, (1,), named)
    return bool((words < 0).any()), bool((words & ~rewriting.OUTSIDE).any())


_twins: dict[Any, Any] = {}


def _twin(kernel: Any, pointers: int) -> Any:
    if kernel not in _twins:
        _twins[kernel] = triton_side.twin(kernel, pointers, CHECKS)
    return _twins[kernel]


@pytest.mark.parametrize("kernel", tiles.KERNELS)
@settings(deadline=None)  # the first one compiles
@given(tile=tiles.TILES)
@example(tile=tiles.Tile(4, 32, 32, 0))
@example(tile=tiles.Tile(4, 32, 32, 1))
@example(tile=tiles.Tile(1, 32, 0, tiles.INT32 - 31))
def test_a_lane_that_is_on_and_outside_is_told_and_taken_out(kernel: Any, tile: tiles.Tile) -> None:
    around, size = tiles.AROUND, tiles.ROWS * tiles.WIDTH
    memory = torch.zeros(around + size + around, dtype=torch.int32)
    target = memory[around:-around]
    named = {"ROWS": tiles.ROWS, "WIDTH": tiles.WIDTH}
    outside, wrapped = told(kernel, target, *tile.arguments, **named)
    assert wrapped == tile.wraps(kernel)
    assert wrapped or outside == any(not 0 <= at < size for at in tile.reached)
    assert not memory[:around].any()
    assert not memory[-around:].any()
    if not outside and not wrapped:
        assert set(target.nonzero().flatten().tolist()) == tile.reached


def numbers(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def halves(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.float16)


@pytest.mark.parametrize(
    ("kernel", "args", "named", "expected"),
    [
        (known.at_product, (numbers(4), 3, 1 << 30), {}, (True, True)),
        (known.masked_product, (numbers(4), 3, 1 << 30), {}, (False, False)),
        (known.wide_product, (numbers(4), 3, 0), {}, (False, False)),
        (known.counted_outside, (numbers(3), 3), {}, (True, False)),
        (stepped, (numbers(512), numbers(64), 3, 1), {"BLOCK": 64}, (False, False)),
        (stepped, (numbers(512), numbers(64), 3, 1 << 20), {"BLOCK": 64}, (True, False)),
        (stepped, (numbers(512), numbers(64), 3, 1 << 26), {"BLOCK": 64}, (False, True)),
        (reset, (numbers(64), numbers(64), 5, 1 << 30), {"BLOCK": 64}, (False, False)),
        (while_it_lasts, (numbers(8), numbers(8), 8, 2), {}, (True, False)),
        (while_it_grows, (numbers(8), 1 << 28, 5), {}, (True, False)),
        (while_it_grows, (numbers(8), 1 << 28, 9), {}, (True, True)),
        (while_it_grows, (numbers(8), 0, 9), {}, (False, False)),
        (
            known.summed,
            (numbers(8), torch.full((4,), 1 << 30, dtype=torch.int32)),
            {"N": 4},
            (False, True),
        ),
        (
            known.summed,
            (numbers(8), torch.full((4,), 1, dtype=torch.int32)),
            {"N": 4},
            (False, False),
        ),
        (
            of_sums,
            (numbers(8), torch.full((4,), 1 << 30, dtype=torch.int32), 1),
            {"N": 4},
            (True, False),
        ),
        (
            of_sums,
            (numbers(8), torch.full((4,), 1 << 30, dtype=torch.int32), 4),
            {"N": 4},
            (True, True),
        ),
        (product, (halves(4096), halves(4096), halves(4096), 64), {"BLOCK": 64}, (False, False)),
        (product, (halves(4096), halves(4096), halves(4096), 128), {"BLOCK": 64}, (True, False)),
    ],
)
def test_what_a_kernel_does_is_told(
    kernel: Any, args: Any, named: Any, expected: tuple[bool, bool]
) -> None:
    assert told(kernel, *args, **named) == expected
