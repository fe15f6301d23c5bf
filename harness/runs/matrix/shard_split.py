"""A plan's cells split over machines, so that all end at about the same time.

The longest first, each to whoever has least so far. The split hangs on the plan and the costs
alone: machines that have the same of both agree on it without a word.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from harness.core.errors import UnfixError
from harness.runs.matrix.cell_plan import MatrixPlan, PlanShard


def estimate_costs(plan: MatrixPlan, known_costs: Mapping[str, float]) -> dict[str, float]:
    """What each cell is expected to take; one that never ran takes the mean, or all count alike."""
    told = [known_costs[cell.identity] for cell in plan.cells if cell.identity in known_costs]
    mean = sum(told) / len(told) if told else 1.0
    return {cell.identity: known_costs.get(cell.identity, mean) for cell in plan.cells}


def split_plan(
    plan: MatrixPlan, known_costs: Mapping[str, float], shard_count: int
) -> list[PlanShard]:
    """All shares of a plan, each with its cells in the plan's order."""
    if not 1 <= shard_count <= len(plan.cells):
        raise UnfixError(
            f"{shard_count} shards of {len(plan.cells)} cells: from 1 to {len(plan.cells)} can be had"
        )
    costs = estimate_costs(plan, known_costs)
    loads = [(0.0, number) for number in range(1, shard_count + 1)]
    given: dict[int, set[str]] = {number: set() for _, number in loads}
    for identity in sorted(costs, key=lambda one: (-costs[one], one)):
        load, number = heapq.heappop(loads)
        given[number].add(identity)
        heapq.heappush(loads, (load + costs[identity], number))
    return [
        _make_shard(plan, costs, given[number], number, shard_count) for number in sorted(given)
    ]


def select_shard(
    plan: MatrixPlan, costs: Mapping[str, float], number: int, shard_count: int
) -> PlanShard:
    """One share, as every machine computes it."""
    if not 1 <= number <= shard_count:
        raise UnfixError(f"shard {number}/{shard_count}: it is a number from 1 to {shard_count}")
    return split_plan(plan, costs, shard_count)[number - 1]


def compute_imbalance(shards: Sequence[PlanShard]) -> float:
    """How many times the mean the slowest takes."""
    mean = sum(shard.seconds for shard in shards) / len(shards)
    return max(shard.seconds for shard in shards) / mean if mean else 1.0


def _make_shard(
    plan: MatrixPlan, costs: Mapping[str, float], own_cells: set[str], number: int, shard_count: int
) -> PlanShard:
    cells = [cell.identity for cell in plan.cells if cell.identity in own_cells]
    return PlanShard(
        plan.digest, number, shard_count, cells, sum(costs[identity] for identity in cells)
    )
