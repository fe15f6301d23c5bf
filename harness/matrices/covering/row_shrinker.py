"""A tabu search for fewer covering rows: drop a row, repair the coverage, and repeat.

One step draws an uncovered tuple and changes one value of a row so that the row has it; of all such
changes the one that uncovers fewest other tuples is made. A value that was just changed is tabu for
3 to 9 steps. Whenever everything is covered, the rows are recorded and another row is dropped. The
search counts its own work, and not seconds, so that every machine ends with the same rows.
"""

from __future__ import annotations

import random

from harness.matrices.covering.row_space import ValueRow
from harness.matrices.covering.tuple_tally import TupleTally
from harness.matrices.covering.value_tuples import ValueTuple

EFFORT_BY_STRENGTH = {1: 2_000_000, 2: 16_000_000}  # units of work, by the largest strength
MOST_EFFORT = 60_000_000
PATIENCE = 3_000_000  # work without success, beside three times the work until the last one
PATIENCE_EACH = 2_000  # the same, for each tuple: small problems end sooner
RANDOM_WALK_RATE = 0.001
ROWS_TRIED = 6  # rows to change in several values at once, when no single change works


class RowShrinker:
    """One search over the rows of one tally."""

    def __init__(self, tally: TupleTally, lower_bound: int, generator: random.Random) -> None:
        self.tally = tally
        self.space = tally.space
        self.lower_bound = lower_bound
        self.generator = generator
        self.work_done = 0
        self.iteration = 0
        self.tabu: dict[tuple[int, int], int] = {}
        strength = max((len(one) for one in tally.counts), default=1)
        self.effort = EFFORT_BY_STRENGTH.get(strength, MOST_EFFORT)
        self.patience = min(PATIENCE, PATIENCE_EACH * len(tally.counts))

    def shrink(self) -> None:
        """Leave the tally with the fewest complete rows found."""
        best = self._copy_rows()
        last_success = 0
        while self.work_done < min(self.effort, self.patience + 3 * last_success):
            if not self.tally.uncovered:
                best = self._copy_rows()
                last_success = self.work_done
                if len(best) <= self.lower_bound or not self._drop_row():
                    break
                continue
            self._cover_tuple(self.generator.choice(self.tally.uncovered))
        self._restore_rows(best)

    def _copy_rows(self) -> list[tuple[ValueRow, frozenset[int]]]:
        return [
            (list(row), kept)
            for row, kept in zip(self.tally.rows, self.tally.kept_axes, strict=True)
        ]

    def _restore_rows(self, rows: list[tuple[ValueRow, frozenset[int]]]) -> None:
        while self.tally.rows:
            self.tally.drop_row(len(self.tally.rows) - 1)
        for row, kept in rows:
            self.tally.add_row(row, kept)

    def _drop_row(self) -> bool:
        """Drop the row with fewest tuples of its own; False if all rows have required values."""
        tally = self.tally
        free = [index for index, kept in enumerate(tally.kept_axes) if not kept]
        if not free:
            return False
        tally.drop_row(min(free, key=tally.count_unique_tuples))
        self.work_done += len(free) * len(tally.tuple_getters)
        self.tabu.clear()
        return True

    def _cover_tuple(self, missing_tuple: ValueTuple) -> None:
        self.iteration += 1
        if self.generator.random() >= RANDOM_WALK_RATE and self._change_one_value(missing_tuple):
            return
        self._change_several_values(missing_tuple)

    def _change_one_value(self, missing_tuple: ValueTuple) -> bool:
        tally, space = self.tally, self.space
        tuple_mask = sum(1 << value for value in missing_tuple)
        all_but_one = len(missing_tuple) - 1
        least_loss = 0
        best: list[tuple[int, int, int]] = []
        tried = 0
        for index, mask in enumerate(tally.row_masks):
            if (mask & tuple_mask).bit_count() != all_but_one:
                continue
            value = (tuple_mask & ~mask).bit_length() - 1
            axis = space.axis_of[value]
            if axis in tally.kept_axes[index] or self.tabu.get((index, axis), 0) >= self.iteration:
                continue
            changed = mask & ~space.axis_masks[axis] | 1 << value
            if space.rules_of[axis] and space.has_broken_rule(changed, axis):
                continue
            tried += 1
            loss = tally.count_loss(index, axis, value)
            if not best or loss < least_loss:
                least_loss, best = loss, [(index, axis, value)]
            elif loss == least_loss:
                best.append((index, axis, value))
        self.work_done += len(tally.row_masks) + 8 * tried * len(tally.partner_axes[0])
        if not best:
            return False
        self._change_value(*self.generator.choice(best))
        return True

    def _change_value(self, index: int, axis: int, value: int) -> None:
        self.tally.set_value(index, axis, value)
        self.tabu[index, axis] = self.iteration + self.generator.randrange(3, 10)
        self.work_done += 12 * len(self.tally.getters_by_axis[axis])

    def _change_several_values(self, missing_tuple: ValueTuple) -> None:
        """Put the tuple into one of a few rows, of which other values may change with it."""
        tally = self.tally
        least_loss, best = 0, None
        for _ in range(ROWS_TRIED):
            index = self.generator.randrange(len(tally.rows))
            before = list(tally.rows[index])
            row = self._complete_row_with(index, missing_tuple)
            if row is None:
                continue
            uncovered = len(tally.uncovered)
            tally.replace_row(index, row)
            loss = len(tally.uncovered) - uncovered
            tally.replace_row(index, before)
            self.work_done += 40 * len(tally.tuple_getters)
            if best is None or loss < least_loss:
                least_loss, best = loss, (index, row)
        self.work_done += 300 * len(self.space.sizes)
        if best is not None:
            index, row = best
            for axis, value in enumerate(row):
                if tally.rows[index][axis] != value:
                    self._change_value(index, axis, value)

    def _complete_row_with(self, index: int, missing_tuple: ValueTuple) -> ValueRow | None:
        """Change a row to have a tuple, and as little else as the rules require."""
        own, kept = self.tally.rows[index], self.tally.kept_axes[index]
        if any(self.space.axis_of[v] in kept and v not in own for v in missing_tuple):
            return None
        domain = self.space.make_domain([*missing_tuple, *(own[axis] for axis in kept)])
        order = list(self.space.axes)
        self.generator.shuffle(order)

        def prefer_own(filled: int, values: list[int]) -> list[int]:
            self.generator.shuffle(values)
            return sorted(values, key=lambda value: value not in own)

        return self.space.complete_row(domain, order, prefer_own)


def drop_redundant_rows(tally: TupleTally) -> None:
    """Drop each row whose tuples are all in other rows; a row with required values stays."""
    for index in reversed(range(len(tally.rows))):
        if not tally.kept_axes[index] and not tally.count_unique_tuples(index):
            tally.drop_row(index)
