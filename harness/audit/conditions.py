"""Which integers wrap on their way into an access that happens.

Ranges say what an operation may give; the mask of an access and the branches around it say what
must hold where it happens. A condition narrows what it speaks of, and what that was made from. It
says nothing of an operation whose result it compares: wrapped, that is small again, or below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.audit.intervals import Range
from harness.audit.ranges import HUGE, Ranges, constant, span_of
from harness.audit.shape import ACCESSES, mask_of
from harness.kernels.flow import OVERFLOWING
from harness.kernels.graph import Operation, Value


@dataclass(frozen=True, slots=True)
class Wrap:
    """An operation whose true result is more than its type holds, on its way into accesses."""

    operation: Operation
    range: Range
    access: Operation

    @property
    def known(self) -> bool:
        return not self.range.why


class Wraps:
    """The operations of one graph that wrap in one world."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges, self.reading = ranges, ranges.reading
        self._suspect: Value | None = None

    def found(self, at: tuple[str, int] | None = None, own: bool = True) -> Iterator[Wrap]:
        """Of each access: the operations that leave their type in lanes that may be on.

        `own`: less those that only go on with what has wrapped before.
        """
        for access, conditions in self.reading.accesses:
            suspects = [
                one
                for one in self.reading.reached[access]
                if (at is None or (one.source.file, one.source.line) == at)
                and self._leaves(one, self.ranges.get)
            ]
            for operation in suspects:
                bounds = self.bounds(access, conditions, operation.result)
                if bounds is None:
                    if not self.ranges.world.every:
                        continue  # it does not happen in this launch
                    bounds = {}  # with the constants at hand: that proves nothing of others
                refined = Refined(self.ranges, bounds).get
                left = self._leaves(operation, refined)
                if left is not None and not (own and self._follows(operation, refined)):
                    yield Wrap(operation, left, access)

    def _follows(self, operation: Operation, get: Callable[[Value], Range]) -> bool:
        """Whether it only goes on with what has wrapped before."""
        makers = (self.reading.makers.get(self.reading.root(one)) for one in operation.operands)
        return any(
            one is not None and one.name in OVERFLOWING and self._leaves(one, get) is not None
            for one in makers
        )

    def _leaves(self, operation: Operation, get: Callable[[Value], Range]) -> Range | None:
        result = operation.result
        true = self.ranges.true(operation, result, get)
        signed = self.reading.addressing.signed.get(result, True)
        low, high = span_of(result, signed)
        if not signed and operation.name == "arith.subi":
            low = -HUGE  # a difference that is masked is below zero now and then
        if result.kind.bits >= 64 or result.kind.bits == 1:
            return None
        return true if true.high > high or true.low < low else None

    def bounds(
        self,
        access: Operation,
        conditions: tuple[tuple[Value, bool], ...],
        suspect: Value | None = None,
    ) -> dict[Value, tuple[int, int]] | None:
        """What holds wherever the access happens, whatever the suspect has become there."""
        self._suspect = suspect
        bounds: dict[Value, tuple[int, int]] = {}
        mask = mask_of(access)
        given = (*conditions, *(((mask, True),) if mask is not None else ()))
        for value, holds in given:
            if not self._assume(value, holds, bounds, 0):
                return None
        return bounds

    def _assume(
        self, value: Value, holds: bool, bounds: dict[Value, tuple[int, int]], depth: int
    ) -> bool:
        """Narrow what a condition speaks of; whether it can hold at all."""
        if depth > 30:
            return True
        value = self.reading.root(value)
        maker = self.reading.makers.get(value)
        if maker is None:
            return True
        if maker.name == "arith.constant":
            known = constant(maker, value)
            return not (known.low == known.high and bool(known.high) != holds)
        if (maker.name == "arith.andi" and holds) or (maker.name == "arith.ori" and not holds):
            return all(self._assume(one, holds, bounds, depth + 1) for one in maker.operands)
        if maker.name == "arith.xori":
            left, right = maker.operands
            known = self.ranges.get(right)
            if known.low == known.high:
                return self._assume(left, holds != bool(known.low), bounds, depth + 1)
        if maker.name == "arith.select" and holds:
            condition, true, false = maker.operands
            other = self.ranges.get(false)
            if other.high == 0 and other.low == 0:
                both = (condition, true)
                return all(self._assume(one, True, bounds, depth + 1) for one in both)
        if maker.name == "arith.cmpi":
            return self._compare(maker, holds, bounds)
        return True

    def _compare(self, maker: Operation, holds: bool, bounds: dict[Value, tuple[int, int]]) -> bool:
        word = _predicate(maker)
        if not holds:
            word = _OPPOSITE.get(word, "")
        left, right = maker.operands
        if self._suspect in self.reading.cone(left) | self.reading.cone(right):
            return True  # what has wrapped is compared, and may be small again
        word = word.replace("u", "s") if word[:1] == "u" else word
        if word in ("sgt", "sge"):
            left, right, word = right, left, {"sgt": "slt", "sge": "sle"}[word]
        low, high = self.ranges.get(left), self.ranges.get(right)
        if word in ("slt", "sle"):
            less = 1 if word == "slt" else 0
            if low.low > high.high - less and not low.why and not high.why:
                return False
            self._narrow(left, -HUGE, high.high - less, bounds, 0)
            self._narrow(right, low.low + less, HUGE, bounds, 0)
        elif word == "eq":
            self._narrow(left, high.low, high.high, bounds, 0)
            self._narrow(right, low.low, low.high, bounds, 0)
        return True

    def _narrow(
        self, value: Value, low: int, high: int, bounds: dict[Value, tuple[int, int]], depth: int
    ) -> None:
        """Also of what it was made from: parts of a sum of no negatives are no larger than it."""
        value = self.reading.root(value)
        before = bounds.get(value, (-HUGE, HUGE))
        bounds[value] = (max(low, before[0]), min(high, before[1]))
        maker = self.reading.makers.get(value)
        if maker is None or depth > 5 or high >= HUGE:
            return
        if maker.name == "arith.addi":
            left, right = maker.operands
            self._narrow(left, -HUGE, high - self.ranges.get(right).low, bounds, depth + 1)
            self._narrow(right, -HUGE, high - self.ranges.get(left).low, bounds, depth + 1)
        elif maker.name == "arith.muli":
            for one, other in (maker.operands, maker.operands[::-1]):
                factor = self.ranges.get(other)
                if factor.low > 0 and high >= 0:
                    self._narrow(one, -HUGE, high // factor.low, bounds, depth + 1)
        elif maker.name == "arith.divsi":
            one, other = maker.operands
            factor = self.ranges.get(other)
            if factor.low > 0 and high >= 0:
                self._narrow(one, -HUGE, (high + 1) * factor.high - 1, bounds, depth + 1)


class Refined:
    """Ranges where conditions hold."""

    def __init__(self, ranges: Ranges, bounds: dict[Value, tuple[int, int]]) -> None:
        self._ranges, self._bounds = ranges, bounds
        self._of: dict[Value, Range] = {}

    def get(self, value: Value) -> Range:
        if value not in self._of:
            reading = self._ranges.reading
            found = self._of[value] = self._ranges.get(value)  # also against circles of loops
            maker = reading.makers.get(value)
            plain = maker is not None and not maker.regions and maker.name not in ACCESSES
            if maker is not None and plain and value.kind.is_integer:
                found = self._ranges.made(maker, value, self.get)
            bound = self._bounds.get(reading.root(value))
            if bound is not None:
                found = found.at_most(bound[1]).at_least(bound[0])
            self._of[value] = found
        return self._of[value]


def _predicate(operation: Operation) -> str:
    words = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
    text = operation.attributes.get("predicate", "")
    digits = text.split(":")[0].strip()
    return words[int(digits)] if digits.isdigit() else text


_OPPOSITE = {
    "slt": "sge", "sle": "sgt", "sgt": "sle", "sge": "slt", "ult": "uge", "ule": "ugt",
    "ugt": "ule", "uge": "ult", "ne": "eq", "eq": "ne",
}  # fmt: skip
