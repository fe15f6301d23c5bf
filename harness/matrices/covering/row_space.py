"""Rows of axis values, rules that forbid some, and an exact search for an allowed row.

Every value of every axis has a bit. A rule is a set of masks, one for an axis, and forbids each row
that has a bit in all of them. With axes (kv: bits 0, 1) and (page: bits 2, 3) the rule (0b0010,
0b0100) forbids the rows with bits 1 and 2. A domain is a mask of the values still possible.
An axis that need not apply has one value more, "absent".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

ValueRow = list[int]  # for each axis, the bit of its value
# From the mask of the chosen values and the values of an axis: the order in which to try them.
ValueOrder = Callable[[int, list[int]], list[int]]


@dataclass(frozen=True)
class RowRule:
    """Forbids the rows that have a bit in every mask."""

    masks: tuple[int, ...]
    axes: tuple[int, ...]
    constraint: int  # index of the constraint that it comes from


class RowSpace:
    """The axes of a row, and the rules over them."""

    def __init__(self, sizes: Sequence[int], rules: Sequence[RowRule] = ()) -> None:
        self.sizes = list(sizes)
        self.rules = list(rules)
        self.axis_of = [axis for axis, size in enumerate(sizes) for _ in range(size)]
        self.first_bit = [sum(sizes[:axis]) for axis in range(len(sizes))]
        self.axis_masks = [
            ((1 << size) - 1) << first for size, first in zip(sizes, self.first_bit, strict=True)
        ]
        self.full_domain = (1 << sum(sizes)) - 1
        self.absent_bits = [-1] * len(self.sizes)
        self.rules_of: list[list[tuple[int, ...]]] = [[] for _ in sizes]
        for rule in self.rules:
            for axis in rule.axes:
                self.rules_of[axis].append(rule.masks)
        # Of each rule and axis: the mask of the rule, and the rest of the axis.
        self._rule_sides = [
            tuple(
                (mask, self.axis_masks[axis] & ~mask)
                for mask, axis in zip(r.masks, r.axes, strict=True)
            )
            for r in self.rules
        ]

    @property
    def axes(self) -> range:
        return range(len(self.sizes))

    def list_values(self, axis: int) -> range:
        """List all values of an axis, including absent."""
        return range(self.first_bit[axis], self.first_bit[axis] + self.sizes[axis])

    def list_present_values(self, axis: int) -> list[int]:
        return [value for value in self.list_values(axis) if value != self.absent_bits[axis]]

    @cached_property
    def axis_is_free(self) -> list[bool]:
        """For each axis, True if no rule mentions it."""
        return [not self.rules_of[axis] for axis in self.axes]

    def without_constraint(self, constraint: int) -> RowSpace:
        """Return the same space without one constraint."""
        return self.with_rules([rule for rule in self.rules if rule.constraint != constraint])

    def with_rules(self, rules: Sequence[RowRule]) -> RowSpace:
        space = RowSpace(self.sizes, rules)
        space.absent_bits = self.absent_bits
        return space

    def make_domain(self, values: Iterable[int]) -> int:
        """Return the domain in which the axes of these values have only these values."""
        domain = self.full_domain
        for value in values:
            domain &= ~self.axis_masks[self.axis_of[value]] | 1 << value
        return domain

    def has_broken_rule(self, mask: int, axis: int) -> bool:
        """Return whether a whole row breaks a rule that mentions an axis."""
        for masks in self.rules_of[axis]:  # a loop, since the search spends its time here
            for part in masks:
                if not mask & part:
                    break
            else:
                return True
        return False

    def is_allowed(self, mask: int) -> bool:
        """Return whether a whole row breaks no rule."""
        return not any(all(mask & part for part in rule.masks) for rule in self.rules)

    def narrow_domain(self, domain: int) -> int:
        """Narrow by unit propagation: the only way to meet a rule is forced; 0 if none is left."""
        changed = True
        while changed:
            changed = False
            for sides in self._rule_sides:
                way_out = 0
                for inside, outside in sides:
                    if not domain & inside:
                        break  # it cannot be broken any more
                    if domain & outside:
                        if way_out:
                            break
                        way_out = inside
                else:
                    if not way_out:
                        return 0
                    domain &= ~way_out
                    changed = True
        return domain

    def complete_row(
        self,
        domain: int,
        order: Sequence[int],
        value_order: ValueOrder | None = None,
    ) -> ValueRow | None:
        """Find an allowed row inside a domain, or None if there is none (the search is complete).

        Axes are filled in `order`; an axis outside of it keeps every value left to it.
        """
        domain = self.narrow_domain(domain)
        return (
            self._fill_axes(domain, self._mask_decided_values(domain), order, 0, value_order)
            if domain
            else None
        )

    def _fill_axes(
        self,
        domain: int,
        filled: int,
        order: Sequence[int],
        position: int,
        value_order: ValueOrder | None,
    ) -> ValueRow | None:
        while position < len(order) and filled & self.axis_masks[order[position]]:
            position += 1
        if position == len(order):
            return list_bits(domain)
        axis = order[position]
        choices = list_bits(domain & self.axis_masks[axis])
        for value in value_order(filled, choices) if value_order else choices:
            left = domain & ~self.axis_masks[axis] | 1 << value
            row = None
            if self.axis_is_free[axis]:
                row = self._fill_axes(left, filled | 1 << value, order, position + 1, value_order)
            elif left := self.narrow_domain(left):
                row = self._fill_axes(
                    left, self._mask_decided_values(left), order, position + 1, value_order
                )
            if row is not None:
                return row
        return None

    def _mask_decided_values(self, domain: int) -> int:
        """Return the values of the axes that have one value left."""
        decided = 0
        for mask in self.axis_masks:
            values = domain & mask
            if not values & (values - 1):
                decided |= values
        return decided

    @cached_property
    def ruled_axes(self) -> list[int]:
        """The axes that rules mention, most rules first; the other axes can always be filled."""
        ruled = [axis for axis in self.axes if not self.axis_is_free[axis]]
        return sorted(ruled, key=lambda axis: -len(self.rules_of[axis]))

    def can_extend(self, values: Iterable[int]) -> bool:
        """Return whether some allowed row has these values."""
        return self.complete_row(self.make_domain(values), self.ruled_axes) is not None


def list_bits(mask: int) -> list[int]:
    bits = []
    while mask:
        low = mask & -mask
        bits.append(low.bit_length() - 1)
        mask ^= low
    return bits
