"""From rules and strengths to the rows that cover them: found, completed, made few, checked.

covertable makes the first rows where it can. Whatever it says, the tuples are counted here: those
that an allowed row can have and that stand in none get rows of their own, and then rows are taken
out for as long as the others can be mended to cover everything.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.matrix import shrinking, starting, tuples
from harness.matrix.space import Row, Space
from harness.matrix.tally import Tally
from harness.matrix.tuples import Tuple

Groups = Sequence[tuple[Sequence[int], int]]  # axes, and how many at a time; first all axes


@dataclass
class Covered:
    """Rows that cover every group."""

    kept: list[Row]  # one for each of the values to keep, in their order
    others: list[Row]
    forbidden: list[Tuple] = field(default_factory=list)  # of the widest sets of axes

    @property
    def rows(self) -> list[Row]:
        """Each row once, those to keep first."""
        unique = dict.fromkeys(tuple(row) for row in (*self.kept, *self.others))
        return [list(row) for row in unique]


@dataclass(frozen=True)
class Count:
    """What rows cover of one group."""

    tuples: int
    covered: int
    forbidden: list[Tuple]


def cover(space: Space, groups: Groups, keep: Sequence[Sequence[int]], seed: int) -> Covered:
    """Rows with all tuples that can be, the values to keep in one each; the same for a seed."""
    generator = random.Random(seed)
    sets = tuples.widest(
        one for axes, strength in groups for one in tuples.axis_sets(axes, strength)
    )
    tuples.all_of(space, sets)  # too many are refused before anything is searched
    first = starting.by_covertable(space, groups, seed)
    allowed, forbidden = tuples.possible(space, sets, first, generator)
    tally = Tally(space, sets, allowed)
    greedy = starting.Greedy(tally, generator)
    for values in keep:
        if not greedy.keep(values):
            raise AssertionError(f"nothing is left for {values}, which was said to be possible")
    for row in first:
        tally.add(row)
    greedy.cover_all()
    shrinking.without_spare_rows(tally)
    shrinking.Shrinking(tally, fewest(allowed, space), generator).go()
    pairs = list(zip(tally.rows, tally.kept, strict=True))
    kept = [row for row, values in pairs if values]
    return Covered(kept, sorted(row for row, values in pairs if not values), forbidden)


def fewest(allowed: Sequence[Tuple], space: Space) -> int:
    """No fewer rows can do: each has one tuple of each set of axes."""
    counts: dict[Tuple, int] = {}
    for one in allowed:
        axes = tuple(space.axis_of[value] for value in one)
        counts[axes] = counts.get(axes, 0) + 1
    return max(counts.values(), default=1)


def count(space: Space, axes: Sequence[int], strength: int, rows: Sequence[Row]) -> Count:
    """One group, tuple by tuple, from the rows alone."""
    sets = tuples.axis_sets(axes, strength)
    allowed, forbidden = tuples.possible(space, sets, rows, random.Random(0))
    there = tuples.covered_by(rows, sets)
    return Count(len(allowed), sum(one in there for one in allowed), forbidden)
