"""The tuples of values that have to meet, which of them can, and which do: counted one by one.

Nothing here knows how rows are found, so this is what checks whoever finds them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import prod

from harness.core.errors import UnfixError
from harness.runs.matrix.row_space import RowSpace, ValueRow

ValueTuple = tuple[int, ...]  # values of different axes, in the axes' order
MAX_TUPLES = 400_000


def list_axis_sets(axes: Iterable[int], strength: int) -> list[ValueTuple]:
    """Each choice of so many axes of a group."""
    return list(combinations(sorted(axes), strength))


def drop_contained_sets(sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    """Without those that lie inside another one: their tuples are covered with it."""
    kept: list[ValueTuple] = []
    inside: set[ValueTuple] = set()
    for one in sorted(set(sets), key=lambda axes: (-len(axes), axes)):
        if one not in inside:
            kept.append(one)
            for size in range(1, len(one)):
                inside.update(combinations(one, size))
    return sorted(kept)


def count_tuples(space: RowSpace, sets: Iterable[ValueTuple]) -> int:
    return sum(prod(len(space.list_present_values(axis)) for axis in axes) for axes in sets)


def list_tuples(space: RowSpace, sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    """Every tuple over these axes, whether it can be or not."""
    sets = list(sets)
    asked = count_tuples(space, sets)
    if asked > MAX_TUPLES:
        raise UnfixError(
            f"{asked} tuples would have to meet, and {MAX_TUPLES} is the most that is planned: "
            "lower a strength, or make its group smaller"
        )
    return [
        found
        for axes in sets
        for found in product(*(space.list_present_values(axis) for axis in axes))
    ]


def list_row_tuples(row: ValueRow, sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    return [tuple(row[axis] for axis in axes) for axes in sets]


def collect_covered_tuples(rows: Iterable[ValueRow], sets: Sequence[ValueTuple]) -> set[ValueTuple]:
    return {found for row in rows for found in list_row_tuples(row, sets)}


def split_possible_tuples(
    space: RowSpace, sets: Sequence[ValueTuple], rows: Iterable[ValueRow], generator: random.Random
) -> tuple[list[ValueTuple], list[ValueTuple]]:
    """Tuples that some allowed row has, and those that none can have.

    What stands in a known row needs no search, and what a search finds is known from then on.
    """
    wanted = list_tuples(space, sets)
    if not space.rules:
        return wanted, []
    seen = collect_covered_tuples(
        (row for row in rows if space.is_allowed(sum(1 << v for v in row))), sets
    )
    allowed: list[ValueTuple] = []
    forbidden: list[ValueTuple] = []
    for one in wanted:
        if one not in seen:
            order = list(space.axes)
            generator.shuffle(order)
            row = space.complete_row(
                space.make_domain(one), [*space.ruled_axes, *order], _RandomValueOrder(generator)
            )
            if row is None:
                forbidden.append(one)
                continue
            seen.update(list_row_tuples(row, sets))
        allowed.append(one)
    return allowed, forbidden


class _RandomValueOrder:
    """Values in any order, so that the rows that are found differ."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __call__(self, filled: int, values: list[int]) -> list[int]:
        self.generator.shuffle(values)
        return values
