"""The first rows, one after the other, each covering many tuples that no row has yet."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness.matrices.covering.row_space import ValueRow, list_bits
from harness.matrices.covering.tuple_tally import TupleTally
from harness.matrices.covering.value_tuples import ValueTuple

ROWS_TRIED = 8  # random orders of the axes for each row; the best row counts


class GreedyRows:
    """Adds rows to a tally until every tuple is covered."""

    def __init__(self, tally: TupleTally, generator: random.Random) -> None:
        self.tally = tally
        self.space = tally.space
        self.generator = generator

    def add_row_with(self, values: Sequence[int]) -> None:
        """Add a row with these values, which later changes of rows leave in place."""
        axes = frozenset(self.space.axis_of[value] for value in values)
        self.tally.add_row(self._build_best_row(tuple(values)), axes)

    def cover_all(self) -> None:
        while self.tally.uncovered:
            self.tally.add_row(self._build_best_row(self.generator.choice(self.tally.uncovered)))

    def _build_best_row(self, values: ValueTuple) -> ValueRow:
        domain = self.space.make_domain(values)
        best_row: ValueRow = []
        best_gain = -1
        for _ in range(ROWS_TRIED):
            order = list(self.space.axes)
            self.generator.shuffle(order)
            row = self.space.complete_row(domain, order, self._order_by_gain)
            if row is None:
                raise AssertionError(f"no allowed row has {values}, though they were possible")
            gain = sum(self.tally.counts.get(get(row)) == 0 for get in self.tally.tuple_getters)
            if gain > best_gain:
                best_row, best_gain = row, gain
        return best_row

    def _order_by_gain(self, filled: int, values: list[int]) -> list[int]:
        """Order the values of an axis: those that complete most uncovered tuples come first."""
        axis = self.space.axis_of[values[0]]
        self.generator.shuffle(values)
        gains = dict.fromkeys(values, 0)
        for partners in self.tally.partner_axes[axis]:
            choices = [list_bits(filled & self.space.axis_masks[other]) for other in partners]
            if all(choices):
                rest = [bits[0] for bits in choices]
                for value in values:
                    last = self.tally.missing_masks.get((value, *rest), 0)
                    gains[value] += (last & filled).bit_count()
        return sorted(values, key=lambda value: -gains[value])
