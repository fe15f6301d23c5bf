"""A few programs launched as a grid of their own do what they do in the whole one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from cpu_runs import run_checked, run_on_cpu  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sanitizer.gpu import DEFAULT_CHECKS, SUBGRID_CHECK
from harness.sanitizer.gpu.program_grid import Subgrid


@triton.jit
def places(target, turns):
    at = tl.program_id(0)
    at = at * tl.num_programs(1) + tl.program_id(1)
    at = at * tl.num_programs(2) + tl.program_id(2)
    many = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    for turn in range(turns):
        if turn == tl.program_id(0) % 2:
            tl.store(target + at, many + tl.program_id(2))


def run_subgrid(sides: tuple[int, ...], first: tuple[int, ...], grid: tuple[int, ...]) -> Any:
    target = torch.zeros(math.prod(sides), dtype=torch.int32)
    _, records = run_checked(
        places,
        (target, 2),
        {},
        grid,
        checks=(*DEFAULT_CHECKS, SUBGRID_CHECK),
        subgrid=Subgrid(first, sides),
    )
    assert not any(word for word, *_ in records)
    return target.view(sides)


@settings(deadline=None, max_examples=30)
@given(data=st.data(), sides=st.tuples(*[st.integers(1, 5)] * 3))
def test_a_part_does_what_it_does_in_the_whole_grid(data: Any, sides: tuple[int, ...]) -> None:
    first = data.draw(st.tuples(*(st.integers(0, side - 1) for side in sides)))
    grid = data.draw(
        st.tuples(*(st.integers(1, side - at) for side, at in zip(sides, first, strict=True)))
    )
    found = run_subgrid(sides, first, grid)
    inside = [range(at, at + many) for at, many in zip(first, grid, strict=True)]
    for place in itertools.product(*map(range, sides)):
        on = all(coordinate in span for coordinate, span in zip(place, inside, strict=True))
        assert found[place].item() == (math.prod(sides) + place[2]) * on


@pytest.mark.parametrize("first", [(0, 0, 0), (1, 2, 0)])
def test_a_program_past_what_a_launcher_counts_is_told_its_number(first: tuple[int, ...]) -> None:
    target = torch.zeros(1, dtype=torch.int64)
    sides = (1 << 30, 4, 1)
    run_checked(
        number_programs,
        (target,),
        {},
        (1, 1, 1),
        checks=(*DEFAULT_CHECKS, SUBGRID_CHECK),
        subgrid=Subgrid(first, sides),
    )
    assert target.item() == first[0] * 4 + first[1] + (1 << 32)


@triton.jit
def number_programs(target):
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(target, row + tl.num_programs(0).to(tl.int64) * tl.num_programs(1))
