"""The tuples of values that have to meet, which of them can, and which do: counted one by one.

Nothing here knows how rows are found, so this is what checks whoever finds them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import prod

from harness.errors import UnfixError
from harness.matrix.space import Row, Space

Tuple = tuple[int, ...]  # values of different axes, in the axes' order
MOST = 400_000


def axis_sets(axes: Iterable[int], strength: int) -> list[Tuple]:
    """Each choice of so many axes of a group."""
    return list(combinations(sorted(axes), strength))


def widest(sets: Iterable[Tuple]) -> list[Tuple]:
    """Without those that lie inside another one: their tuples are covered with it."""
    kept: list[Tuple] = []
    inside: set[Tuple] = set()
    for one in sorted(set(sets), key=lambda axes: (-len(axes), axes)):
        if one not in inside:
            kept.append(one)
            for size in range(1, len(one)):
                inside.update(combinations(one, size))
    return sorted(kept)


def number_of(space: Space, sets: Iterable[Tuple]) -> int:
    return sum(prod(len(space.real(axis)) for axis in axes) for axes in sets)


def all_of(space: Space, sets: Iterable[Tuple]) -> list[Tuple]:
    """Every tuple over these axes, whether it can be or not."""
    sets = list(sets)
    asked = number_of(space, sets)
    if asked > MOST:
        raise UnfixError(
            f"{asked} tuples would have to meet, and {MOST} is the most that is planned: "
            "lower a strength, or make its group smaller"
        )
    return [found for axes in sets for found in product(*(space.real(axis) for axis in axes))]


def in_row(row: Row, sets: Iterable[Tuple]) -> list[Tuple]:
    return [tuple(row[axis] for axis in axes) for axes in sets]


def covered_by(rows: Iterable[Row], sets: Sequence[Tuple]) -> set[Tuple]:
    return {found for row in rows for found in in_row(row, sets)}


def possible(
    space: Space, sets: Sequence[Tuple], rows: Iterable[Row], generator: random.Random
) -> tuple[list[Tuple], list[Tuple]]:
    """Tuples that some allowed row has, and those that none can have.

    What stands in a known row needs no search, and what a search finds is known from then on.
    """
    wanted = all_of(space, sets)
    if not space.rules:
        return wanted, []
    seen = covered_by((row for row in rows if space.allowed(sum(1 << v for v in row))), sets)
    allowed: list[Tuple] = []
    forbidden: list[Tuple] = []
    for one in wanted:
        if one not in seen:
            order = list(space.axes)
            generator.shuffle(order)
            row = space.complete(space.domain(one), [*space.ruled, *order], _any(generator))
            if row is None:
                forbidden.append(one)
                continue
            seen.update(in_row(row, sets))
        allowed.append(one)
    return allowed, forbidden


class _any:
    """Values in any order, so that the rows that are found differ."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __call__(self, filled: int, values: list[int]) -> list[int]:
        self.generator.shuffle(values)
        return values
