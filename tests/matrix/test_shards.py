"""Cells over machines: each once, evenly by duration, the same split everywhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

from harness.core.errors import UnfixError
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import shards
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan


def plan_of(count: int) -> MatrixPlan:
    rest: Any = ("x", ["true"], {}, MachineNeeds(), 60, "covering")
    cells = [MatrixCell(f"c{number:04}", {"a": str(number)}, *rest) for number in range(count)]
    return MatrixPlan("p", "digest", {"a": [str(n) for n in range(count)]}, cells, [], [], 0.0)


def draw_skewed_seconds(plan: MatrixPlan, seed: int = 0) -> dict[str, float]:
    """Return a few cells that take minutes, and many that take seconds."""
    generator = random.Random(seed)
    return {cell.identity: min(300.0, generator.lognormvariate(2, 1.5)) for cell in plan.cells}


@pytest.mark.parametrize("seed", range(10))
def test_the_slowest_of_eight_is_within_a_fifth_of_the_mean(seed: int) -> None:
    plan = plan_of(300)
    costs = draw_skewed_seconds(plan, seed)
    assert max(costs.values()) > 20 * sorted(costs.values())[150]  # it is skewed, indeed
    shares = shards.split_plan(plan, costs, 8)
    loads = [sum(costs[identity] for identity in share.cells) for share in shares]
    assert max(loads) <= 1.2 * sum(loads) / 8
    assert [share.seconds for share in shares] == pytest.approx(loads)
    assert shards.compute_imbalance(shares) == pytest.approx(max(loads) * 8 / sum(loads))


def test_a_cell_that_takes_more_than_a_share_has_a_shard_of_its_own() -> None:
    plan = plan_of(100)
    costs = draw_skewed_seconds(plan) | {"c0050": 10_000.0}
    shares = shards.split_plan(plan, costs, 8)
    (own,) = [share for share in shares if "c0050" in share.cells]
    assert own.cells == ["c0050"]
    others = [share.seconds for share in shares if share is not own]
    assert max(others) <= 1.2 * sum(others) / 7


@pytest.mark.parametrize("of", [1, 2, 7, 40])
def test_each_cell_is_in_one_shard_and_none_is_empty(of: int) -> None:
    plan = plan_of(40)
    shares = shards.split_plan(plan, draw_skewed_seconds(plan), of)
    identities = [identity for share in shares for identity in share.cells]
    assert sorted(identities) == sorted(cell.identity for cell in plan.cells)
    assert all(share.cells for share in shares)
    assert [share.number for share in shares] == list(range(1, of + 1))
    assert {(share.of, share.plan) for share in shares} == {(of, "digest")}


def test_a_cell_that_never_ran_counts_as_the_mean() -> None:
    costs = shards.estimate_costs(plan_of(4), {"c0000": 10.0, "c0002": 30.0, "elsewhere": 1000.0})
    assert costs == {"c0000": 10.0, "c0001": 20.0, "c0002": 30.0, "c0003": 20.0}
    shares = shards.split_plan(plan_of(10), {}, 3)
    assert sorted(len(share.cells) for share in shares) == [3, 3, 4]


def test_the_split_hangs_on_no_order_of_the_costs() -> None:
    plan = plan_of(60)
    costs = draw_skewed_seconds(plan)
    other = dict(reversed(costs.items()))
    for number in range(1, 6):
        share = shards.select_shard(plan, costs, number, 5)
        assert share == shards.select_shard(plan, other, number, 5)
        assert share == shards.split_plan(plan, costs, 5)[number - 1]
        assert share.cells == sorted(share.cells)  # the order of the plan


@pytest.mark.parametrize(("number", "of"), [(0, 2), (3, 2), (1, 0), (1, 11), (-1, 3)])
def test_a_shard_that_cannot_be_is_refused(number: int, of: int) -> None:
    with pytest.raises(UnfixError, match="from 1 to"):
        shards.select_shard(plan_of(10), {}, number, of)
