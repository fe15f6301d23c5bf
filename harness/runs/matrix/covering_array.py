"""From rules and strengths to the rows that cover them: found, completed, made few, checked.

covertable makes the first rows where it can. Whatever it says, the tuples are counted here: those
that an allowed row can have and that stand in none get rows of their own, and then rows are taken
out for as long as the others can be mended to cover everything.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.runs.matrix import row_shrinker, starting_rows, value_tuples
from harness.runs.matrix.row_space import RowSpace, ValueRow
from harness.runs.matrix.tuple_tally import TupleTally
from harness.runs.matrix.value_tuples import ValueTuple

CoverageGroups = Sequence[tuple[Sequence[int], int]]  # axes, and how many at a time; first all axes


@dataclass
class CoveringRows:
    """Rows that cover every group."""

    required_rows: list[ValueRow]  # one for each entry of the required values, in their order
    other_rows: list[ValueRow]
    forbidden_tuples: list[ValueTuple] = field(default_factory=list)  # of the widest sets of axes

    @property
    def rows(self) -> list[ValueRow]:
        """Each row once, those to keep first."""
        unique = dict.fromkeys(tuple(row) for row in (*self.required_rows, *self.other_rows))
        return [list(row) for row in unique]


@dataclass(frozen=True)
class GroupTupleCount:
    """What rows cover of one group."""

    allowed: int
    covered: int
    forbidden_tuples: list[ValueTuple]


def build_covering_rows(
    space: RowSpace, groups: CoverageGroups, values_to_keep: Sequence[Sequence[int]], seed: int
) -> CoveringRows:
    """Rows with all tuples that can be, the values to keep in one each; the same for a seed."""
    generator = random.Random(seed)
    sets = value_tuples.drop_contained_sets(
        one for axes, strength in groups for one in value_tuples.list_axis_sets(axes, strength)
    )
    value_tuples.list_tuples(space, sets)  # too many are refused before anything is searched
    first = starting_rows.make_covertable_rows(space, groups, seed)
    allowed, forbidden = value_tuples.split_possible_tuples(space, sets, first, generator)
    tally = TupleTally(space, sets, allowed)
    greedy = starting_rows.GreedyCover(tally, generator)
    for values in values_to_keep:
        if not greedy.add_row_with(values):
            raise AssertionError(f"nothing is left for {values}, which was said to be possible")
    for row in first:
        tally.add_row(row)
    greedy.cover_all()
    row_shrinker.drop_redundant_rows(tally)
    row_shrinker.RowShrinker(tally, count_fewest_rows(allowed, space), generator).shrink()
    pairs = list(zip(tally.rows, tally.kept_axes, strict=True))
    kept = [row for row, values in pairs if values]
    return CoveringRows(kept, sorted(row for row, values in pairs if not values), forbidden)


def count_fewest_rows(allowed: Sequence[ValueTuple], space: RowSpace) -> int:
    """No fewer rows can do: each has one tuple of each set of axes."""
    counts: dict[ValueTuple, int] = {}
    for one in allowed:
        axes = tuple(space.axis_of[value] for value in one)
        counts[axes] = counts.get(axes, 0) + 1
    return max(counts.values(), default=1)


def count_group_tuples(
    space: RowSpace, axes: Sequence[int], strength: int, rows: Sequence[ValueRow]
) -> GroupTupleCount:
    """One group, tuple by tuple, from the rows alone."""
    sets = value_tuples.list_axis_sets(axes, strength)
    allowed, forbidden = value_tuples.split_possible_tuples(space, sets, rows, random.Random(0))
    there = value_tuples.collect_covered_tuples(rows, sets)
    return GroupTupleCount(len(allowed), sum(one in there for one in allowed), forbidden)
