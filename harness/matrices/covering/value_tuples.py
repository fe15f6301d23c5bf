"""Tuples of axis values: which must be covered, which are possible, which some rows cover.

These functions are independent of the search for rows, so they can check it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import prod

from harness.core.errors import UnfixError
from harness.matrices.covering.row_space import RowSpace, ValueRow

ValueTuple = tuple[int, ...]  # values of different axes, in the axes' order
MAX_TUPLES = 400_000


def list_axis_sets(axes: Iterable[int], strength: int) -> list[ValueTuple]:
    """List each combination of `strength` axes."""
    return list(combinations(sorted(axes), strength))


def drop_contained_sets(sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    """Drop each set that is part of another set: covering the larger set covers it."""
    largest: list[ValueTuple] = []
    contained: set[ValueTuple] = set()
    for axes in sorted(set(sets), key=lambda axes: (-len(axes), axes)):
        if axes not in contained:
            largest.append(axes)
            for size in range(1, len(axes)):
                contained.update(combinations(axes, size))
    return sorted(largest)


def count_tuples(space: RowSpace, sets: Iterable[ValueTuple]) -> int:
    return sum(prod(len(space.list_present_values(axis)) for axis in axes) for axes in sets)


def list_tuples(space: RowSpace, sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    """List every tuple over these sets of axes, possible or not."""
    sets = list(sets)
    count = count_tuples(space, sets)
    if count > MAX_TUPLES:
        raise UnfixError(
            f"{count} tuples would have to be covered, and {MAX_TUPLES} is the limit: "
            "lower a strength, or make its group smaller"
        )
    return [
        values
        for axes in sets
        for values in product(*(space.list_present_values(axis) for axis in axes))
    ]


def list_row_tuples(row: ValueRow, sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    return [tuple(row[axis] for axis in axes) for axes in sets]


def collect_covered_tuples(rows: Iterable[ValueRow], sets: Sequence[ValueTuple]) -> set[ValueTuple]:
    return {values for row in rows for values in list_row_tuples(row, sets)}


def split_possible_tuples(
    space: RowSpace, sets: Sequence[ValueTuple], rows: Iterable[ValueRow], generator: random.Random
) -> tuple[list[ValueTuple], list[ValueTuple]]:
    """Split into tuples that an allowed row can have, and tuples that no allowed row can have.

    A tuple of a given row needs no search; a row that the search finds settles all its tuples.
    """
    every_tuple = list_tuples(space, sets)
    if not space.rules:
        return every_tuple, []
    covered = collect_covered_tuples(
        (row for row in rows if space.is_allowed(sum(1 << v for v in row))), sets
    )
    allowed: list[ValueTuple] = []
    forbidden: list[ValueTuple] = []

    def shuffle(filled: int, choices: list[int]) -> list[int]:
        """Return a random order of values, so that the rows found differ."""
        generator.shuffle(choices)
        return choices

    for values in every_tuple:
        if values not in covered:
            order = list(space.axes)
            generator.shuffle(order)
            order = [*space.ruled_axes, *order]
            row = space.complete_row(space.make_domain(values), order, shuffle)
            if row is None:
                forbidden.append(values)
                continue
            covered.update(list_row_tuples(row, sets))
        allowed.append(values)
    return allowed, forbidden
