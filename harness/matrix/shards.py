"""A plan's cells split over machines, so that all end at about the same time.

The longest first, each to whoever has least so far. The split hangs on the plan and the costs
alone: machines that have the same of both agree on it without a word.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from harness.errors import UnfixError
from harness.matrix.values import Plan, Shard


def costs_of(plan: Plan, known: Mapping[str, float]) -> dict[str, float]:
    """What each cell is expected to take; one that never ran takes the mean, or all count alike."""
    told = [known[cell.identity] for cell in plan.cells if cell.identity in known]
    mean = sum(told) / len(told) if told else 1.0
    return {cell.identity: known.get(cell.identity, mean) for cell in plan.cells}


def shards_of(plan: Plan, known: Mapping[str, float], of: int) -> list[Shard]:
    """All shares of a plan, each with its cells in the plan's order."""
    if not 1 <= of <= len(plan.cells):
        raise UnfixError(
            f"{of} shards of {len(plan.cells)} cells: from 1 to {len(plan.cells)} can be had"
        )
    costs = costs_of(plan, known)
    loads = [(0.0, number) for number in range(1, of + 1)]
    given: dict[int, set[str]] = {number: set() for _, number in loads}
    for identity in sorted(costs, key=lambda one: (-costs[one], one)):
        load, number = heapq.heappop(loads)
        given[number].add(identity)
        heapq.heappush(loads, (load + costs[identity], number))
    return [_shard(plan, costs, given[number], number, of) for number in sorted(given)]


def shard_of(plan: Plan, costs: Mapping[str, float], number: int, of: int) -> Shard:
    """One share, as every machine computes it."""
    if not 1 <= number <= of:
        raise UnfixError(f"shard {number}/{of}: it is a number from 1 to {of}")
    return shards_of(plan, costs, of)[number - 1]


def imbalance(shards: Sequence[Shard]) -> float:
    """How many times the mean the slowest takes."""
    mean = sum(shard.seconds for shard in shards) / len(shards)
    return max(shard.seconds for shard in shards) / mean if mean else 1.0


def _shard(plan: Plan, costs: Mapping[str, float], own: set[str], number: int, of: int) -> Shard:
    cells = [cell.identity for cell in plan.cells if cell.identity in own]
    return Shard(plan.digest, number, of, cells, sum(costs[identity] for identity in cells))
