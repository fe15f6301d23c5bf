"""The first rows: covertable's, and what it leaves out, row by greedy row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from harness.matrix.space import Row, Space, bits
from harness.matrix.tally import Tally
from harness.matrix.tuples import Tuple, axis_sets, number_of

# Beyond this covertable takes longer than all the rest, and greedy rows shrink to the same.
MOST_FOR_COVERTABLE = 4_000
TRIED = 8


def by_covertable(
    space: Space, groups: Sequence[tuple[Sequence[int], int]], seed: int
) -> list[Row]:
    """A covering array from the library, if it is one that it makes in seconds."""
    from covertable import criteria, make  # type: ignore[import-untyped]

    everything, default = groups[0]
    if default < 2 or _asked(space, groups) > MOST_FOR_COVERTABLE:
        return []
    rows = make(
        [list(space.values(axis)) for axis in everything],
        strength=default,
        criterion=criteria.simple,
        salt=str(seed),
        sub_models=[{"fields": list(a), "strength": s} for a, s in groups[1:] if s >= 2],
        constraints=[_condition(rule.masks, rule.axes, space) for rule in space.rules],
    )
    return [row for row in rows if space.allowed(sum(1 << value for value in row))]


def _asked(space: Space, groups: Sequence[tuple[Sequence[int], int]]) -> int:
    return sum(number_of(space, axis_sets(axes, strength)) for axes, strength in groups)


def _condition(masks: Sequence[int], axes: Sequence[int], space: Space) -> dict[str, Any]:
    outside = [
        {
            "operator": "in",
            "left": axis,
            "values": [value for value in space.values(axis) if not mask >> value & 1],
        }
        for mask, axis in zip(masks, axes, strict=True)
    ]
    return {"operator": "or", "conditions": outside}


class Greedy:
    """Rows one after the other, each covering much of what is missing."""

    def __init__(self, tally: Tally, generator: random.Random) -> None:
        self.tally = tally
        self.space = tally.space
        self.generator = generator

    def cover_all(self) -> None:
        while self.tally.uncovered:
            self.tally.add(self._best(self.generator.choice(self.tally.uncovered)))

    def keep(self, values: Sequence[int]) -> bool:
        """A row with these values to keep; False if the rules leave none."""
        row = self._best(tuple(values), possible=False)
        if row:
            self.tally.add(row, frozenset(self.space.axis_of[value] for value in values))
        return bool(row)

    def _best(self, values: Tuple, possible: bool = True) -> Row:
        domain = self.space.domain(values)
        best: Row = []
        most = -1
        for _ in range(TRIED):
            order = list(self.space.axes)
            self.generator.shuffle(order)
            row = self.space.complete(domain, order, self._most_first)
            if row is None:
                if possible:
                    raise AssertionError(f"no row has {values}, which was said to be possible")
                return []
            gain = sum(self.tally.counts.get(get(row)) == 0 for get in self.tally.sets)
            if gain > most:
                best, most = row, gain
        return best

    def _most_first(self, filled: int, values: list[int]) -> list[int]:
        """The values that meet most of what is filled for the first time."""
        axis = self.space.axis_of[values[0]]
        self.generator.shuffle(values)
        gains = dict.fromkeys(values, 0)
        for beside in self.tally.beside[axis]:
            others = [bits(filled & self.space.masks[other]) for other in beside]
            if all(others):
                rest = [other[0] for other in others]
                for value in values:
                    last = self.tally.missing.get((value, *rest), 0)
                    gains[value] += (last & filled).bit_count()
        return sorted(values, key=lambda value: -gains[value])
