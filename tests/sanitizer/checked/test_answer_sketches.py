"""A sketch tells a difference beyond rounding from none, also where one row of many differs."""

from __future__ import annotations

import pytest
import torch

from harness.runs.zoo.answer_sketches import make_sketch


def compare_sketches(before: torch.Tensor, after: torch.Tensor) -> str:
    return make_sketch([before], 2e-5).describe_difference(make_sketch([after], 2e-5))


@pytest.mark.parametrize(
    ("factor", "rows", "is_different"),
    [(1.0, 200, False), (1.0 + 1e-6, 200, False), (1.05, 1, True), (1.01, 200, True)],
)
def test_a_difference_beyond_rounding_is_told(factor: float, rows: int, is_different: bool) -> None:
    before = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
    after = before.clone()
    after[:rows] *= factor
    assert bool(compare_sketches(before, after)) is is_different


def test_integers_may_not_differ_at_all() -> None:
    before = torch.arange(1000)
    assert compare_sketches(before, before.clone()) == ""
    assert compare_sketches(before, before.index_fill(0, torch.tensor([7]), 8)) == (
        "other integers, or another shape"
    )


def test_numbers_that_become_none_are_a_difference() -> None:
    before = torch.ones(100)
    after = before.clone()
    after[3] = float("nan")
    assert compare_sketches(before, after)
    assert make_sketch([after], 2e-5).digest == make_sketch([after.clone()], 2e-5).digest
