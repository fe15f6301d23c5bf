"""Twins of the integers that addresses are made of: which wrap they hold, and of what it came.

The same integers as on a CPU, by the same `flow`. A twin is computed beside its integer and
looked at when a lane that is on goes through the address.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from harness.compiled.building import EQ, NE, SGE, SLT, ULT, Builder
from harness.compiled.ranges import Ranges
from harness.kernels import flow
from harness.kernels.flow import Addressing
from harness.kernels.graph import Block, Kind, Operation, Region, Value

SYMBOLS = {
    "arith.addi": "+",
    "arith.subi": "-",
    "arith.muli": "*",
    "arith.shli": "<<",
    "arith.trunci": "narrowed",
    "tt.reduce": "sum",
    "tt.scan": "sum",
}
_MOVED = frozenset(
    f"tt.{name}" for name in "splat broadcast expand_dims reshape trans unsplat".split()
)
_SAME_SHAPE = frozenset({"tt.addptr", "tt.bitcast", "tt.ptr_to_int", "tt.int_to_ptr", "math.absi"})


class Twin(NamedTuple):
    """Of each lane: the number of a wrap, from 1 on, or 0; and the operands that it was of."""

    word: Value
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Part:
    """A twin, and how it is spread over the lanes of a value.

    A row's wrap stays as small as the row until an access needs it for each of its lanes.
    """

    twin: Twin
    spread: tuple[Operation, ...] = ()

    @property
    def is_scalar(self) -> bool:
        return not self.twin.word.kind.shape


Parts = tuple[Part, ...]


class Twins:
    def __init__(
        self, code: Builder, addressing: Addressing, ranges: Ranges, line: Value | None = None
    ) -> None:
        """`line`: of the source, whose wraps alone count."""
        self._code, self._addressing, self._ranges, self._line = code, addressing, ranges, line
        self._of: dict[Value, Parts] = {}
        self.wraps: list[Operation] = []  # by number, from 0 on

    def __contains__(self, value: Value) -> bool:
        return value in self._addressing

    def signed(self, value: Value) -> bool:
        return self._addressing.signed[value]

    def of(self, value: Value) -> Parts:
        return self._of.get(value, ())

    def put(self, value: Value, parts: Parts) -> None:
        self._of[value] = parts

    def fresh(self, shape: tuple[int, ...]) -> Twin:
        """What control flow hands on."""
        return Twin(*(self._code.value(Kind(kind, shape)) for kind in ("i32", "i64", "i64")))

    def none(self, shape: tuple[int, ...]) -> Twin:
        return Twin(*(self._code.constant(0, Kind(kind, shape)) for kind in ("i32", "i64", "i64")))

    def united(self, value: Value, but: Value | None = None) -> Twin | None:
        """The first in each lane, of those that another has not; None where nothing can wrap."""
        known = self.of(but) if but is not None else ()
        return self._first([self._spread(part) for part in self.of(value) if part not in known])

    def sure(self, value: Value) -> Twin:
        return self.united(value) or self.none(value.kind.shape)

    def handed(self, parts: Iterable[Part], shape: tuple[int, ...]) -> Twin:
        """The first of these parts, as control flow hands it on: one for all lanes, or each's."""
        found = self._first([self._spread(part) if shape else part.twin for part in parts])
        return self.none(shape) if found is None else self._wide(found)

    def _first(self, twins: list[Twin]) -> Twin | None:
        whole: Twin | None = None
        for one in twins:
            whole = one if whole is None else self.either(whole, one)
        return whole

    def either(self, one: Twin, other: Twin) -> Twin:
        code, known = self._code, self.holds(one)
        if [value.kind for value in one] != [value.kind for value in other]:
            one, other = self._wide(one), self._wide(other)
        return Twin(*(code.chosen(known, *both) for both in zip(one, other, strict=True)))

    def holds(self, twin: Twin) -> Value:
        return self._code.compare(NE, twin.word, self._code.constant(0, twin.word.kind))

    def _wide(self, twin: Twin) -> Twin:
        """By sign, whatever theirs is: who reads them takes no more bits than there were."""
        more = (
            value if value.kind.bits == 64 else self._code.extended(value, "i64", signed=True)
            for value in (twin.left, twin.right)
        )
        return Twin(twin.word, *more)

    def told(self, twin: Twin, on: Value | None) -> Twin:
        """As a report has it: of lanes that are on."""
        code, word = self._code, twin.word
        if on is not None:
            word = code.chosen(on, word, code.constant(0, word.kind))
        return self._wide(Twin(word, twin.left, twin.right))

    def _spread(self, part: Part) -> Twin:
        twin = part.twin
        for operation in part.spread:
            kind = operation.result.kind
            twin = Twin(
                *(self._code.again(operation, (one,), kind.of(one.kind.element)) for one in twin)
            )
        return twin

    def follow(self, operation: Operation) -> None:
        """Put the twins of an operation's results behind it."""
        if len(operation.results) == 1 and operation.result in self:
            self._of[operation.result] = self._parts(operation)

    def _parts(self, operation: Operation) -> Parts:
        code, name = self._code, operation.name
        if name in ("tt.reduce", "tt.scan"):
            return self._sum(operation)
        if name in _MOVED:
            return tuple(
                Part(part.twin, (*part.spread, operation))
                for part in self.of(operation.operands[0])
            )
        if name == "arith.select":
            condition, true, false = operation.operands
            if not self.of(true) and not self.of(false):
                return ()
            if condition.kind.shape != true.kind.shape:
                condition = code.splat(condition, true.kind.shape)
            both = zip(self._wide(self.sure(true)), self._wide(self.sure(false)), strict=True)
            return (Part(Twin(*(code.chosen(condition, *one) for one in both))),)
        if not (name.startswith("arith.") or name in _SAME_SHAPE):
            return ()
        given = dict.fromkeys(part for operand in operation.operands for part in self.of(operand))
        if name == "arith.andi" and given:
            return self._confined(operation, tuple(given))
        if name in SYMBOLS and not self._ranges.fits(operation, self.signed(operation.result)):
            return (*given, *self._own(operation))
        return tuple(given)

    def _sum(self, operation: Operation) -> Parts:
        """Whether the same sum in 64 bits is another number, and what had wrapped before it."""
        code, [given], result = self._code, operation.operands, operation.result
        found: Parts = ()
        if flow.is_sum(operation):
            signed = self.signed(result)
            [wide] = self._folded(
                operation,
                (code.extended(given, "i64", signed),),
                lambda one, other: (code.binary("addi", *one, *other),),
            )
            wrong = code.compare(NE, wide, code.extended(result, "i64", signed))
            found = (self._numbered(operation, wrong, wide, wide),)
        before = self.united(given)
        if before is None:
            return found
        folded = self._folded(
            operation, before, lambda one, other: self.either(Twin(*one), Twin(*other))
        )
        return (*found, Part(Twin(*folded)))

    def _folded(self, operation: Operation, given: tuple[Value, ...], both: Any) -> list[Value]:
        """As the operation does, of these, with something else done with two of them."""
        code = self._code
        one, other = ([code.value(Kind(value.kind.element)) for value in given] for _ in range(2))
        with code.at([]) as body:
            ended = tuple(both(one, other))
            body.append(Operation(f"{operation.name}.return", ended, (), {}, operation.source))
        region = Region((Block("bb0", (*one, *other), tuple(body)),))
        made = [code.value(operation.result.kind.of(value.kind.element)) for value in given]
        code.operations.append(
            replace(operation, operands=tuple(given), results=tuple(made), regions=(region,))
        )
        return made

    def _confined(self, operation: Operation, given: Parts) -> Parts:
        """A wrapped number's low bits are right, and a mask without a sign keeps just them."""
        code = self._code
        for number, mask in (operation.operands, operation.operands[::-1]):
            if self._ranges.of(mask)[0] >= 0 and not self.of(mask):
                return ()
            if not self.of(mask):
                kept = code.compare(SGE, mask, code.constant(0, mask.kind))
                word, *operands = self.sure(number)
                none = code.constant(0, word.kind)
                return (Part(Twin(code.chosen(kept, none, word), *operands)),)
        return given

    def _own(self, operation: Operation) -> Parts:
        """None of numbers without a sign in 64 bits: how addresses themselves are added up."""
        signed, result = self.signed(operation.result), operation.result
        if result.kind.bits == 64 and not signed and operation.name in ("arith.addi", "arith.subi"):
            return ()
        left, right = operation.operands[0], operation.operands[-1]
        if operation.name == "arith.trunci" and left.kind.bits < 64:
            left = right = self._code.extended(left, "i64", signed)
        return (self._numbered(operation, self._wrapped(operation, signed), left, right),)

    def _numbered(self, operation: Operation, wrapped: Value, left: Value, right: Value) -> Part:
        code, kind = self._code, operation.result.kind.of("i32")
        if self._line is not None:
            own = code.constant(operation.source.line, self._line.kind)
            here = code.splat(code.compare(EQ, self._line, own), kind.shape)
            wrapped = code.binary("andi", wrapped, here)
        number = code.constant(1 + self._number(operation), kind)
        return Part(Twin(code.chosen(wrapped, number, code.constant(0, kind)), left, right))

    def _number(self, operation: Operation) -> int:
        """A place in the source has one, however often it was made of it."""
        kind = operation.result.kind.element
        for number, other in enumerate(self.wraps):
            if (other.name, other.source, other.result.kind.element) == (
                operation.name,
                operation.source,
                kind,
            ):
                return number
        self.wraps.append(operation)
        return len(self.wraps) - 1

    def _wrapped(self, operation: Operation, signed: bool) -> Value:
        """Whether the true result does not fit."""
        code, result, first = self._code, operation.result, operation.operands[0]
        name = operation.name.removeprefix("arith.")
        if name == "trunci":
            return code.compare(NE, code.extended(result, first.kind.element, signed), first)
        second = operation.operands[1]
        if name == "shli":
            most = code.constant(result.kind.bits - 1, result.kind)
            amount = code.binary("minui", second, most)
            back = code.binary("shrsi" if signed else "shrui", result, amount)
            return code.compare(NE, back, first)
        if name == "muli":
            return self._too_large(result, first, second, signed)
        if not signed:
            small = (result, first) if name == "addi" else (first, second)
            return code.compare(ULT, *small)
        other = code.binary("xori", *((second, result) if name == "addi" else (first, second)))
        both = code.binary("andi", code.binary("xori", first, result), other)
        return code.compare(SLT, both, code.constant(0, both.kind))

    def _too_large(self, result: Value, first: Value, second: Value, signed: bool) -> Value:
        code = self._code
        if result.kind.bits < 64:
            wide = code.binary("muli", *(code.extended(v, "i64", signed) for v in (first, second)))
            return code.compare(NE, wide, code.extended(result, "i64", signed))
        high = code.emit("tt.mulhiui", (first, second), result.kind)
        if not signed:
            return code.compare(NE, high, code.constant(0, result.kind))
        sign = code.constant(63, result.kind)
        for one, other in ((first, second), (second, first)):
            less = code.binary("andi", code.binary("shrsi", one, sign), other)
            high = code.binary("subi", high, less)
        return code.compare(NE, high, code.binary("shrsi", result, sign))
