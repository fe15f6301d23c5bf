"""Fewer rows that cover the same: take one out, mend what that uncovered, and again.

A tabu search, one change at a time: an uncovered tuple is drawn, and put into the row that loses
least by it. It counts its own work, and not seconds, so that every machine ends with the same rows.
"""

from __future__ import annotations

import random

from harness.matrix.space import Row
from harness.matrix.tally import Tally
from harness.matrix.tuples import Tuple

EFFORT = {1: 2_000_000, 2: 16_000_000}  # in steps of work, by the largest strength
MOST_EFFORT = 60_000_000
PATIENCE = 3_000_000  # after the last success, and twice what was needed until then
PATIENCE_EACH = 2_000  # the same for a tuple: what is small is soon searched
WANDER = 0.001
TRIED = 6  # rows that are changed in several values at once, when no single change will do


class Shrinking:
    """One search over one tally."""

    def __init__(self, tally: Tally, fewest: int, generator: random.Random) -> None:
        self.tally = tally
        self.space = tally.space
        self.fewest = fewest
        self.generator = generator
        self.work = 0
        self.turn = 0
        self.tabu: dict[tuple[int, int], int] = {}
        strength = max((len(one) for one in tally.counts), default=1)
        self.effort = EFFORT.get(strength, MOST_EFFORT)
        self.patience = min(PATIENCE, PATIENCE_EACH * len(tally.counts))

    def go(self) -> None:
        """Leaves the tally with the smallest complete rows that were found."""
        best = self._rows()
        found_at = 0
        while self.work < min(self.effort, self.patience + 3 * found_at):
            if not self.tally.uncovered:
                best = self._rows()
                found_at = self.work
                if len(best) <= self.fewest or not self._drop_one():
                    break
                continue
            self._mend(self.generator.choice(self.tally.uncovered))
        self._restore(best)

    def _rows(self) -> list[tuple[Row, frozenset[int]]]:
        return [
            (list(row), kept) for row, kept in zip(self.tally.rows, self.tally.kept, strict=True)
        ]

    def _restore(self, rows: list[tuple[Row, frozenset[int]]]) -> None:
        while self.tally.rows:
            self.tally.drop(len(self.tally.rows) - 1)
        for row, kept in rows:
            self.tally.add(row, kept)

    def _drop_one(self) -> bool:
        """The row that is needed least; those with a value to keep all stay."""
        tally = self.tally
        free = [index for index, kept in enumerate(tally.kept) if not kept]
        if not free:
            return False
        tally.drop(min(free, key=tally.alone))
        self.work += len(free) * len(tally.sets)
        self.tabu.clear()
        return True

    def _mend(self, missing: Tuple) -> None:
        self.turn += 1
        if self.generator.random() >= WANDER and self._one_change(missing):
            return
        self._several_changes(missing)

    def _one_change(self, missing: Tuple) -> bool:
        tally, space = self.tally, self.space
        wanted = sum(1 << value for value in missing)
        all_but_one = len(missing) - 1
        least = 0
        best: list[tuple[int, int, int]] = []
        tried = 0
        for index, mask in enumerate(tally.masks):
            if (mask & wanted).bit_count() != all_but_one:
                continue
            value = (wanted & ~mask).bit_length() - 1
            axis = space.axis_of[value]
            if axis in tally.kept[index] or self.tabu.get((index, axis), 0) >= self.turn:
                continue
            changed = mask & ~space.masks[axis] | 1 << value
            if space.rules_of[axis] and space.breaks(changed, axis):
                continue
            tried += 1
            loss = tally.loss(index, axis, value)
            if not best or loss < least:
                least, best = loss, [(index, axis, value)]
            elif loss == least:
                best.append((index, axis, value))
        self.work += len(tally.masks) + 8 * tried * len(tally.beside[0])
        if not best:
            return False
        self._change(*self.generator.choice(best))
        return True

    def _change(self, index: int, axis: int, value: int) -> None:
        self.tally.put(index, axis, value)
        self.tabu[index, axis] = self.turn + self.generator.randrange(3, 10)
        self.work += 12 * len(self.tally.touching[axis])

    def _several_changes(self, missing: Tuple) -> None:
        """Among some rows the one that loses least when its other values give way."""
        tally = self.tally
        least, best = 0, None
        for _ in range(TRIED):
            index = self.generator.randrange(len(tally.rows))
            before = list(tally.rows[index])
            row = self._with(index, missing)
            if row is None:
                continue
            uncovered = len(tally.uncovered)
            tally.replace(index, row)
            loss = len(tally.uncovered) - uncovered
            tally.replace(index, before)
            self.work += 40 * len(tally.sets)
            if best is None or loss < least:
                least, best = loss, (index, row)
        self.work += 300 * len(self.space.sizes)
        if best is not None:
            index, row = best
            for axis, value in enumerate(row):
                if tally.rows[index][axis] != value:
                    self._change(index, axis, value)

    def _with(self, index: int, missing: Tuple) -> Row | None:
        """A row as it is but for a tuple and for what its rules then ask."""
        own, kept = self.tally.rows[index], self.tally.kept[index]
        if any(self.space.axis_of[v] in kept and v not in own for v in missing):
            return None
        domain = self.space.domain([*missing, *(own[axis] for axis in kept)])
        order = list(self.space.axes)
        self.generator.shuffle(order)

        def as_it_is(filled: int, values: list[int]) -> list[int]:
            self.generator.shuffle(values)
            return sorted(values, key=lambda value: value not in own)

        return self.space.complete(domain, order, as_it_is)


def without_spare_rows(tally: Tally) -> None:
    """Drops each row all of whose tuples stand in others; a row with a value to keep stays."""
    for index in reversed(range(len(tally.rows))):
        if not tally.kept[index] and not tally.alone(index):
            tally.drop(index)
