"""Rows of values, rules that forbid some, and an exact search for what is left.

Every value of every axis has a bit. A rule is a set of masks, one an axis, and forbids each row
that is inside all of them. An axis that need not apply has one value more, 'absent'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Row = list[int]  # the bit's number of each axis' value, axis by axis
# Told what is filled, as a mask, and an axis' values: the order in which to try them.
Prefer = Callable[[int, list[int]], list[int]]


@dataclass(frozen=True)
class Rule:
    """No row may be inside all the masks."""

    masks: tuple[int, ...]
    axes: tuple[int, ...]
    constraint: int  # which one it comes from


class Space:
    """Axes and rules."""

    def __init__(self, sizes: Sequence[int], rules: Sequence[Rule] = ()) -> None:
        self.sizes = list(sizes)
        self.rules = list(rules)
        self.axis_of = [axis for axis, size in enumerate(sizes) for _ in range(size)]
        self.first = [sum(sizes[:axis]) for axis in range(len(sizes))]
        self.masks = [
            ((1 << size) - 1) << first for size, first in zip(sizes, self.first, strict=True)
        ]
        self.everything = (1 << sum(sizes)) - 1
        self.absent = [-1] * len(self.sizes)
        self.rules_of: list[list[tuple[int, ...]]] = [[] for _ in sizes]
        for rule in self.rules:
            for axis in rule.axes:
                self.rules_of[axis].append(rule.masks)
        # Per rule: the mask inside, and the mask of the same axis outside.
        self._sides = [
            tuple(
                (mask, self.masks[axis] & ~mask) for mask, axis in zip(r.masks, r.axes, strict=True)
            )
            for r in self.rules
        ]

    @property
    def axes(self) -> range:
        return range(len(self.sizes))

    def values(self, axis: int) -> range:
        """All values of an axis, the absent one included."""
        return range(self.first[axis], self.first[axis] + self.sizes[axis])

    def real(self, axis: int) -> list[int]:
        return [value for value in self.values(axis) if value != self.absent[axis]]

    @cached_property
    def free(self) -> list[bool]:
        """The axes that no rule is about."""
        return [not self.rules_of[axis] for axis in self.axes]

    def without(self, constraint: int) -> Space:
        """The same with one constraint taken out."""
        return self.having([rule for rule in self.rules if rule.constraint != constraint])

    def having(self, rules: Sequence[Rule]) -> Space:
        space = Space(self.sizes, rules)
        space.absent = self.absent
        return space

    def domain(self, values: Iterable[int]) -> int:
        """Everything that is left when some axes have their values."""
        left = self.everything
        for value in values:
            left &= ~self.masks[self.axis_of[value]] | 1 << value
        return left

    def breaks(self, mask: int, axis: int) -> bool:
        """Whether a whole row breaks a rule about an axis."""
        for rule in self.rules_of[axis]:
            for part in rule:
                if not mask & part:
                    break
            else:
                return True
        return False

    def allowed(self, mask: int) -> bool:
        """Whether a whole row breaks none."""
        return not any(all(mask & part for part in rule.masks) for rule in self.rules)

    def narrow(self, domain: int) -> int:
        """What is left of a domain when each rule that has one way out took it; 0 for nothing."""
        changed = True
        while changed:
            changed = False
            for sides in self._sides:
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

    def complete(
        self,
        domain: int,
        order: Sequence[int],
        prefer: Prefer | None = None,
    ) -> Row | None:
        """A row inside a domain, found by search, or None for certain.

        Axes are filled in `order`; one that is not named there keeps all that is left to it.
        """
        domain = self.narrow(domain)
        return self._fill(domain, self._decided(domain), order, 0, prefer) if domain else None

    def _fill(
        self, domain: int, filled: int, order: Sequence[int], at: int, prefer: Prefer | None
    ) -> Row | None:
        while at < len(order) and filled & self.masks[order[at]]:
            at += 1
        if at == len(order):
            return bits(domain)
        axis = order[at]
        choices = bits(domain & self.masks[axis])
        for value in prefer(filled, choices) if prefer else choices:
            left = domain & ~self.masks[axis] | 1 << value
            row = None
            if self.free[axis]:
                row = self._fill(left, filled | 1 << value, order, at + 1, prefer)
            elif left := self.narrow(left):
                row = self._fill(left, self._decided(left), order, at + 1, prefer)
            if row is not None:
                return row
        return None

    def _decided(self, domain: int) -> int:
        """The values of the axes that have one left."""
        decided = 0
        for mask in self.masks:
            values = domain & mask
            if not values & (values - 1):
                decided |= values
        return decided

    @cached_property
    def ruled(self) -> list[int]:
        """The axes of the rules, those of most rules first: the others can always be filled."""
        ruled = [axis for axis in self.axes if not self.free[axis]]
        return sorted(ruled, key=lambda axis: -len(self.rules_of[axis]))

    def extends(self, values: Iterable[int]) -> bool:
        """Whether some allowed row has these values."""
        return self.complete(self.domain(values), self.ruled) is not None


def bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
