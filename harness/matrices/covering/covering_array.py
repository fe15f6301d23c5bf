"""Few rows that cover every tuple of values: greedy rows, made fewer by a tabu search.

A group is a set of axes with a strength: with strength 2, each pair of values of two of its axes
must occur in a row, unless the constraints forbid it. Axes of 3, 3 and 2 values have 9 + 6 + 6 = 21
such pairs, and 9 rows cover them. Fewer cannot: a row has one pair of the first two axes.

The invariant: every tuple that an allowed row can have is in a row. `count_group_tuples` checks it
from the rows alone, independently of how they were found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.matrices.covering import row_shrinker, value_tuples
from harness.matrices.covering.greedy_rows import GreedyRows
from harness.matrices.covering.row_space import RowSpace, ValueRow
from harness.matrices.covering.tuple_tally import TupleTally
from harness.matrices.covering.value_tuples import ValueTuple

CoverageGroups = Sequence[tuple[Sequence[int], int]]  # axes and strength; all axes come first


@dataclass
class CoveringRows:
    """Rows that cover every group."""

    required_rows: list[ValueRow]  # one per entry of the required values, in order
    other_rows: list[ValueRow]
    forbidden_tuples: list[ValueTuple] = field(default_factory=list)  # over the widest axis sets

    @property
    def rows(self) -> list[ValueRow]:
        """Each row once, the required rows first."""
        unique = dict.fromkeys(tuple(row) for row in (*self.required_rows, *self.other_rows))
        return [list(row) for row in unique]


@dataclass(frozen=True)
class GroupTupleCount:
    """The coverage of one group."""

    allowed: int
    covered: int
    forbidden_tuples: list[ValueTuple]


def build_covering_rows(
    space: RowSpace, groups: CoverageGroups, required_values: Sequence[Sequence[int]], seed: int
) -> CoveringRows:
    """Build rows that cover the groups, and a row for each entry of the required values.

    Every entry must be possible in an allowed row. Equal seeds give equal rows on every machine.
    """
    generator = random.Random(seed)
    sets = value_tuples.drop_contained_sets(
        axis_set
        for axes, strength in groups
        for axis_set in value_tuples.list_axis_sets(axes, strength)
    )
    allowed, forbidden = value_tuples.split_possible_tuples(space, sets, [], generator)
    tally = TupleTally(space, sets, allowed)
    greedy = GreedyRows(tally, generator)
    for values in required_values:
        greedy.add_row_with(values)
    greedy.cover_all()
    row_shrinker.drop_redundant_rows(tally)
    row_shrinker.RowShrinker(tally, count_fewest_rows(allowed, space), generator).shrink()
    pairs = list(zip(tally.rows, tally.kept_axes, strict=True))
    required_rows = [row for row, kept_axes in pairs if kept_axes]
    other_rows = sorted(row for row, kept_axes in pairs if not kept_axes)
    return CoveringRows(required_rows, other_rows, forbidden)


def count_fewest_rows(allowed: Sequence[ValueTuple], space: RowSpace) -> int:
    """Compute a lower bound of the rows: a row has one tuple of each set of axes."""
    counts = Counter(tuple(space.axis_of[value] for value in values) for values in allowed)
    return max(counts.values(), default=1)


def count_group_tuples(
    space: RowSpace, axes: Sequence[int], strength: int, rows: Sequence[ValueRow]
) -> GroupTupleCount:
    """Count the coverage of one group, tuple by tuple, from the rows alone."""
    sets = value_tuples.list_axis_sets(axes, strength)
    allowed, forbidden = value_tuples.split_possible_tuples(space, sets, rows, random.Random(0))
    covered = value_tuples.collect_covered_tuples(rows, sets)
    return GroupTupleCount(len(allowed), sum(v in covered for v in allowed), forbidden)
