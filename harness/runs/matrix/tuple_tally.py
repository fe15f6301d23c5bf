"""How often each tuple stands in the rows, kept while single values of rows change.

For a value, and the values beside it that make up all but one of a tuple, a mask holds the last
values with which the tuple stands nowhere (`missing`) or in one row (`single`). What a change gains
and loses is then counted in a few operations on masks, whatever the number of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from harness.runs.matrix.row_space import RowSpace, ValueRow
from harness.runs.matrix.value_tuples import ValueTuple

TupleMasks = dict[ValueTuple, int]


class TupleTally:
    """Rows and what they cover."""

    def __init__(
        self, space: RowSpace, sets: Sequence[ValueTuple], allowed: Iterable[ValueTuple]
    ) -> None:
        self.space = space
        self.tuple_getters = [_make_tuple_getter(axes) for axes in sets]
        self.getters_by_axis = [
            [_make_tuple_getter(axes) for axes in sets if axis in axes] for axis in space.axes
        ]
        self.partner_axes = [_list_partner_axes(axis, sets) for axis in space.axes]
        self.every_row_bit = 1 << len(
            space.axis_of
        )  # a bit of every row: it ends tuples of one value
        self.missing_masks: TupleMasks = {}
        self.single_masks: TupleMasks = {}
        self.counts: dict[ValueTuple, int] = {}
        self.uncovered: list[ValueTuple] = []
        self._uncovered_index: dict[ValueTuple, int] = {}
        self.rows: list[ValueRow] = []
        self.row_masks: list[int] = []
        self.kept_axes: list[frozenset[int]] = []  # the axes of each row whose values stay
        for one in allowed:
            self.counts[one] = 0
            self._flip_bits(self.missing_masks, one)
            self._uncover(one)

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
        """How many more tuples would be uncovered if a row had this value."""
        row, mask = self.rows[index], self.row_masks[index]
        gone = self.count_tuples_in(self.single_masks, row, mask, axis, row[axis])
        return gone - self.count_tuples_in(self.missing_masks, row, mask, axis, value)

    def count_tuples_in(
        self, table: TupleMasks, row: Sequence[int], mask: int, axis: int, value: int
    ) -> int:
        """The tuples of a table in which a value would stand with the others of a row."""
        total = 0
        for beside in self.partner_axes[axis]:
            key = (value, *[row[other] for other in beside]) if beside else (value,)
            total += (table.get(key, 0) & mask).bit_count()
        return total

    def count_unique_tuples(self, index: int) -> int:
        """How much stands in this row and in no other: each tuple as often as it has values."""
        row, mask = self.rows[index], self.row_masks[index]
        return sum(
            self.count_tuples_in(self.single_masks, row, mask, axis, value)
            for axis, value in enumerate(row)
        )

    def _increment(self, value_tuple: ValueTuple) -> None:
        count = self.counts.get(value_tuple)
        if count is None:
            return  # with an axis that does not apply
        self.counts[value_tuple] = count + 1
        if count == 0:
            self._flip_bits(self.missing_masks, value_tuple)
            self._flip_bits(self.single_masks, value_tuple)
            place = self._uncovered_index.pop(value_tuple)
            last = self.uncovered.pop()
            if last != value_tuple:
                self.uncovered[place] = last
                self._uncovered_index[last] = place
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
    """The tuple of a row over some axes."""
    if len(axes) == 1:
        return lambda row: (row[axes[0]],)
    return itemgetter(*axes)


def _list_partner_axes(axis: int, sets: Iterable[ValueTuple]) -> list[ValueTuple]:
    found = {tuple(other for other in axes if other != axis)[:-1] for axes in sets if axis in axes}
    return sorted(found)
