"""Counts how many rows have each tuple, while single values of rows change.

For all but the last value of a tuple, a mask has the last values with which the tuple is in no
row (`missing_masks`) or in exactly one row (`single_masks`). If (kv fp8, page 16) is in no row and
page 16 is bit 3, then `missing_masks[(kv fp8,)]` has bit 3. The gain or loss of a change is then a
few operations on masks, independent of the number of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from harness.matrices.covering.row_space import RowSpace, ValueRow
from harness.matrices.covering.value_tuples import ValueTuple

TupleMasks = dict[ValueTuple, int]


class TupleTally:
    """Rows, and how often they have each tuple."""

    def __init__(
        self, space: RowSpace, sets: Sequence[ValueTuple], allowed: Iterable[ValueTuple]
    ) -> None:
        self.space = space
        self.tuple_getters = [_make_tuple_getter(axes) for axes in sets]
        self.getters_by_axis = [
            [_make_tuple_getter(axes) for axes in sets if axis in axes] for axis in space.axes
        ]
        self.partner_axes = [_list_partner_axes(axis, sets) for axis in space.axes]
        self.every_row_bit = 1 << len(space.axis_of)  # a bit of every row: ends tuples of one value
        self.missing_masks: TupleMasks = {}
        self.single_masks: TupleMasks = {}
        self.counts: dict[ValueTuple, int] = {}
        self.uncovered: list[ValueTuple] = []
        self._uncovered_index: dict[ValueTuple, int] = {}
        self.rows: list[ValueRow] = []
        self.row_masks: list[int] = []
        self.kept_axes: list[frozenset[int]] = []  # by row: the axes of its required values
        for values in allowed:
            self.counts[values] = 0
            self._flip_bits(self.missing_masks, values)
            self._uncover(values)

    def add_row(self, row: ValueRow, kept_axes: frozenset[int] = frozenset()) -> None:
        self.rows.append(list(row))
        self.row_masks.append(self.every_row_bit | sum(1 << value for value in row))
        self.kept_axes.append(kept_axes)
        for get in self.tuple_getters:
            self._increment(get(row))

    def drop_row(self, index: int) -> None:
        row = self.rows.pop(index)
        del self.row_masks[index], self.kept_axes[index]
        for get in self.tuple_getters:
            self._decrement(get(row))

    def set_value(self, index: int, axis: int, value: int) -> None:
        """Change one value of a row."""
        row = self.rows[index]
        old = row[axis]
        if old == value:
            return
        for get in self.getters_by_axis[axis]:
            self._decrement(get(row))
        row[axis] = value
        for get in self.getters_by_axis[axis]:
            self._increment(get(row))
        self.row_masks[index] ^= 1 << old | 1 << value

    def replace_row(self, index: int, row: ValueRow) -> None:
        for axis, value in enumerate(row):
            self.set_value(index, axis, value)

    def count_loss(self, index: int, axis: int, value: int) -> int:
        """Count the tuples that a change of one value would uncover, less those it covers."""
        row, mask = self.rows[index], self.row_masks[index]
        gone = self.count_tuples_in(self.single_masks, row, mask, axis, row[axis])
        return gone - self.count_tuples_in(self.missing_masks, row, mask, axis, value)

    def count_tuples_in(
        self, table: TupleMasks, row: Sequence[int], mask: int, axis: int, value: int
    ) -> int:
        """Return the number of tuples of a table that a row with this value would have."""
        total = 0
        for partners in self.partner_axes[axis]:
            key = (value, *[row[other] for other in partners]) if partners else (value,)
            total += (table.get(key, 0) & mask).bit_count()
        return total

    def count_unique_tuples(self, index: int) -> int:
        """Count the tuples in this row alone, each once for each of its values."""
        row, mask = self.rows[index], self.row_masks[index]
        return sum(
            self.count_tuples_in(self.single_masks, row, mask, axis, value)
            for axis, value in enumerate(row)
        )

    def _increment(self, value_tuple: ValueTuple) -> None:
        count = self.counts.get(value_tuple)
        if count is None:
            return  # the tuple has an absent value
        self.counts[value_tuple] = count + 1
        if count == 0:
            self._flip_bits(self.missing_masks, value_tuple)
            self._flip_bits(self.single_masks, value_tuple)
            index = self._uncovered_index.pop(value_tuple)
            last = self.uncovered.pop()
            if last != value_tuple:
                self.uncovered[index] = last
                self._uncovered_index[last] = index
        elif count == 1:
            self._flip_bits(self.single_masks, value_tuple)

    def _decrement(self, value_tuple: ValueTuple) -> None:
        count = self.counts.get(value_tuple)
        if count is None:
            return
        self.counts[value_tuple] = count - 1
        if count == 1:
            self._flip_bits(self.single_masks, value_tuple)
            self._flip_bits(self.missing_masks, value_tuple)
            self._uncover(value_tuple)
        elif count == 2:
            self._flip_bits(self.single_masks, value_tuple)

    def _uncover(self, value_tuple: ValueTuple) -> None:
        self._uncovered_index[value_tuple] = len(self.uncovered)
        self.uncovered.append(value_tuple)

    def _flip_bits(self, table: TupleMasks, value_tuple: ValueTuple) -> None:
        for at, value in enumerate(value_tuple):
            rest = value_tuple[:at] + value_tuple[at + 1 :]
            key = (value, *rest[:-1])
            last = 1 << rest[-1] if rest else self.every_row_bit
            table[key] = table.get(key, 0) ^ last


def _make_tuple_getter(axes: ValueTuple) -> Callable[[ValueRow], ValueTuple]:
    """Return a function from a row to its tuple over some axes."""
    if len(axes) == 1:
        return lambda row: (row[axes[0]],)
    return itemgetter(*axes)


def _list_partner_axes(axis: int, sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    return sorted(
        {tuple(other for other in axes if other != axis)[:-1] for axes in sets if axis in axes}
    )
