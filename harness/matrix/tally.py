"""How often each tuple stands in the rows, kept while single values of rows change.

For a value, and the values beside it that make up all but one of a tuple, a mask holds the last
values with which the tuple stands nowhere (`missing`) or in one row (`single`). What a change gains
and loses is then counted in a few operations on masks, whatever the number of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from harness.matrix.space import Row, Space
from harness.matrix.tuples import Tuple

Masks = dict[Tuple, int]


class Tally:
    """Rows and what they cover."""

    def __init__(self, space: Space, sets: Sequence[Tuple], allowed: Iterable[Tuple]) -> None:
        self.space = space
        self.sets = [_getter(axes) for axes in sets]
        self.touching = [[_getter(axes) for axes in sets if axis in axes] for axis in space.axes]
        self.beside = [_beside(axis, sets) for axis in space.axes]
        self.always = 1 << len(space.axis_of)  # a bit of every row: it ends tuples of one value
        self.missing: Masks = {}
        self.single: Masks = {}
        self.counts: dict[Tuple, int] = {}
        self.uncovered: list[Tuple] = []
        self._place: dict[Tuple, int] = {}
        self.rows: list[Row] = []
        self.masks: list[int] = []
        self.kept: list[frozenset[int]] = []  # the axes of each row whose values stay
        for one in allowed:
            self.counts[one] = 0
            self._flip(self.missing, one)
            self._uncover(one)

    def add(self, row: Row, kept: frozenset[int] = frozenset()) -> None:
        self.rows.append(list(row))
        self.masks.append(self.always | sum(1 << value for value in row))
        self.kept.append(kept)
        for get in self.sets:
            self._more(get(row))

    def drop(self, index: int) -> None:
        row = self.rows.pop(index)
        del self.masks[index], self.kept[index]
        for get in self.sets:
            self._less(get(row))

    def put(self, index: int, axis: int, value: int) -> None:
        """Change one value of a row."""
        row = self.rows[index]
        old = row[axis]
        if old == value:
            return
        for get in self.touching[axis]:
            self._less(get(row))
        row[axis] = value
        for get in self.touching[axis]:
            self._more(get(row))
        self.masks[index] ^= 1 << old | 1 << value

    def replace(self, index: int, row: Row) -> None:
        for axis, value in enumerate(row):
            self.put(index, axis, value)

    def loss(self, index: int, axis: int, value: int) -> int:
        """How many more tuples would be uncovered if a row had this value."""
        row, mask = self.rows[index], self.masks[index]
        gone = self.worth(self.single, row, mask, axis, row[axis])
        return gone - self.worth(self.missing, row, mask, axis, value)

    def worth(self, table: Masks, row: Sequence[int], mask: int, axis: int, value: int) -> int:
        """The tuples of a table in which a value would stand with the others of a row."""
        total = 0
        for beside in self.beside[axis]:
            key = (value, *[row[other] for other in beside]) if beside else (value,)
            total += (table.get(key, 0) & mask).bit_count()
        return total

    def alone(self, index: int) -> int:
        """How much stands in this row and in no other: each tuple as often as it has values."""
        row, mask = self.rows[index], self.masks[index]
        return sum(
            self.worth(self.single, row, mask, axis, value) for axis, value in enumerate(row)
        )

    def _more(self, one: Tuple) -> None:
        count = self.counts.get(one)
        if count is None:
            return  # with an axis that does not apply
        self.counts[one] = count + 1
        if count == 0:
            self._flip(self.missing, one)
            self._flip(self.single, one)
            place = self._place.pop(one)
            last = self.uncovered.pop()
            if last != one:
                self.uncovered[place] = last
                self._place[last] = place
        elif count == 1:
            self._flip(self.single, one)

    def _less(self, one: Tuple) -> None:
        count = self.counts.get(one)
        if count is None:
            return
        self.counts[one] = count - 1
        if count == 1:
            self._flip(self.single, one)
            self._flip(self.missing, one)
            self._uncover(one)
        elif count == 2:
            self._flip(self.single, one)

    def _uncover(self, one: Tuple) -> None:
        self._place[one] = len(self.uncovered)
        self.uncovered.append(one)

    def _flip(self, table: Masks, one: Tuple) -> None:
        for at, value in enumerate(one):
            rest = one[:at] + one[at + 1 :]
            key = (value, *rest[:-1])
            last = 1 << rest[-1] if rest else self.always
            table[key] = table.get(key, 0) ^ last


def _getter(axes: Tuple) -> Callable[[Row], Tuple]:
    """The tuple of a row over some axes."""
    if len(axes) == 1:
        return lambda row: (row[axes[0]],)
    return itemgetter(*axes)


def _beside(axis: int, sets: Iterable[Tuple]) -> list[Tuple]:
    found = {tuple(other for other in axes if other != axis)[:-1] for axes in sets if axis in axes}
    return sorted(found)
