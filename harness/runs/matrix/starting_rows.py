"""The first rows: covertable's, and what it leaves out, row by greedy row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from harness.runs.matrix.row_space import RowSpace, ValueRow, list_bits
from harness.runs.matrix.tuple_tally import TupleTally
from harness.runs.matrix.value_tuples import ValueTuple, count_tuples, list_axis_sets

# Beyond this covertable takes longer than all the rest, and greedy rows shrink to the same.
MOST_FOR_COVERTABLE = 4_000
ROWS_TRIED = 8


def make_covertable_rows(
    space: RowSpace, groups: Sequence[tuple[Sequence[int], int]], seed: int
) -> list[ValueRow]:
    """A covering array from the library, if it is one that it makes in seconds."""
    from covertable import criteria, make  # type: ignore[import-untyped]

    everything, default = groups[0]
    if default < 2 or _count_requested_tuples(space, groups) > MOST_FOR_COVERTABLE:
        return []
    rows = make(
        [list(space.list_values(axis)) for axis in everything],
        strength=default,
        criterion=criteria.simple,
        salt=str(seed),
        sub_models=[{"fields": list(a), "strength": s} for a, s in groups[1:] if s >= 2],
        constraints=[
            _to_covertable_condition(rule.masks, rule.axes, space) for rule in space.rules
        ],
    )
    return [row for row in rows if space.is_allowed(sum(1 << value for value in row))]


def _count_requested_tuples(space: RowSpace, groups: Sequence[tuple[Sequence[int], int]]) -> int:
    return sum(count_tuples(space, list_axis_sets(axes, strength)) for axes, strength in groups)


def _to_covertable_condition(
    masks: Sequence[int], axes: Sequence[int], space: RowSpace
) -> dict[str, Any]:
    outside = [
        {
            "operator": "in",
            "left": axis,
            "values": [value for value in space.list_values(axis) if not mask >> value & 1],
        }
        for mask, axis in zip(masks, axes, strict=True)
    ]
    return {"operator": "or", "conditions": outside}


class GreedyCover:
    """Rows one after the other, each covering much of what is missing."""

    def __init__(self, tally: TupleTally, generator: random.Random) -> None:
        self.tally = tally
        self.space = tally.space
        self.generator = generator

    def cover_all(self) -> None:
        while self.tally.uncovered:
            self.tally.add_row(self._build_best_row(self.generator.choice(self.tally.uncovered)))

    def add_row_with(self, values: Sequence[int]) -> bool:
        """A row with these values to keep; False if the rules leave none."""
        row = self._build_best_row(tuple(values), must_exist=False)
        if row:
            self.tally.add_row(row, frozenset(self.space.axis_of[value] for value in values))
        return bool(row)

    def _build_best_row(self, values: ValueTuple, must_exist: bool = True) -> ValueRow:
        domain = self.space.make_domain(values)
        best: ValueRow = []
        most = -1
        for _ in range(ROWS_TRIED):
            order = list(self.space.axes)
            self.generator.shuffle(order)
            row = self.space.complete_row(domain, order, self._order_by_gain)
            if row is None:
                if must_exist:
                    raise AssertionError(f"no row has {values}, which was said to be possible")
                return []
            gain = sum(self.tally.counts.get(get(row)) == 0 for get in self.tally.tuple_getters)
            if gain > most:
                best, most = row, gain
        return best

    def _order_by_gain(self, filled: int, values: list[int]) -> list[int]:
        """The values that meet most of what is filled for the first time."""
        axis = self.space.axis_of[values[0]]
        self.generator.shuffle(values)
        gains = dict.fromkeys(values, 0)
        for beside in self.tally.partner_axes[axis]:
            others = [list_bits(filled & self.space.axis_masks[other]) for other in beside]
            if all(others):
                rest = [other[0] for other in others]
                for value in values:
                    last = self.tally.missing_masks.get((value, *rest), 0)
                    gains[value] += (last & filled).bit_count()
        return sorted(values, key=lambda value: -gains[value])
