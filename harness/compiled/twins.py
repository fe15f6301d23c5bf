"""Twins of the integers that addresses are made of: bits for what wrapped on the way.

The same integers as on a CPU, by the same `flow`. A twin is computed beside its integer and
looked at when a lane that is on goes through the address. 64 bits, and what a branch of the
function hands on, are not followed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.compiled.building import NE, SGE, SLT, ULT, Builder
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
BITS = 31  # the highest one of a word is an access outside of its tensor
_MOVED = frozenset(
    f"tt.{name}" for name in "splat broadcast expand_dims reshape trans unsplat".split()
)
_SAME_SHAPE = frozenset({"tt.addptr", "tt.bitcast", "tt.ptr_to_int", "tt.int_to_ptr", "math.absi"})


@dataclass(frozen=True, slots=True)
class Part:
    """Bits of one wrap or several, and how they are spread over the lanes of a value.

    A row's wrap stays as small as the row until an access needs it for each of its lanes.
    """

    bits: Value
    spread: tuple[Operation, ...] = ()

    @property
    def is_scalar(self) -> bool:
        return not self.bits.kind.shape


Parts = tuple[Part, ...]


class Twins:
    def __init__(self, code: Builder, addressing: Addressing) -> None:
        self._code, self._addressing = code, addressing
        self._of: dict[Value, Parts] = {}
        self._constants: set[Value] = set()  # that are not negative
        self.wraps: list[Operation] = []  # by number, from which a wrap's bit comes

    def __contains__(self, value: Value) -> bool:
        return value in self._addressing

    def signed(self, value: Value) -> bool:
        return self._addressing.signed[value]

    def of(self, value: Value) -> Parts:
        return self._of.get(value, ())

    def put(self, value: Value, parts: Parts) -> None:
        self._of[value] = parts

    def united(self, *values: Value) -> Value | None:
        """One word a lane, of all these; None where nothing can have wrapped."""
        parts = dict.fromkeys(part for value in values for part in self.of(value))
        return self._or([self._spread(part) for part in parts])

    def sure(self, value: Value) -> Value:
        return self.united(value) or self._code.constant(0, value.kind.of("i32"))

    def word(self, parts: Iterable[Part], kind: Kind) -> Value:
        """All bits of these parts: as one scalar, if they are, or in each lane."""
        words = [self._spread(part) if kind.shape else part.bits for part in parts]
        return self._or(words) or self._code.constant(0, kind)

    def _or(self, words: list[Value]) -> Value | None:
        whole = None
        for one in words:
            whole = one if whole is None else self._code.binary("ori", whole, one)
        return whole

    def _spread(self, part: Part) -> Value:
        value = part.bits
        for operation in part.spread:
            kind = operation.result.kind.of("i32")
            value = self._code.again(operation, (value,), kind)
        return value

    def follow(self, operation: Operation) -> None:
        """Put the twins of an operation's results behind it."""
        if operation.name == "arith.constant" and not operation.attributes["value"].startswith(
            ("-", "dense<-", "dense<[")
        ):
            self._constants.add(operation.result)
        if len(operation.results) == 1 and operation.result in self:
            self._of[operation.result] = self._parts(operation)

    def _parts(self, operation: Operation) -> Parts:
        code, name = self._code, operation.name
        if name in ("tt.reduce", "tt.scan"):
            return self._sum(operation)
        if name in _MOVED:
            return tuple(
                Part(part.bits, (*part.spread, operation))
                for part in self.of(operation.operands[0])
            )
        if name == "arith.select":
            condition, true, false = operation.operands
            if not self.of(true) and not self.of(false):
                return ()
            if condition.kind.shape != true.kind.shape:
                condition = code.splat(condition, true.kind.shape)
            return (Part(code.chosen(condition, self.sure(true), self.sure(false))),)
        if not (name.startswith("arith.") or name in _SAME_SHAPE):
            return ()
        given = dict.fromkeys(part for operand in operation.operands for part in self.of(operand))
        if name == "arith.andi" and given:
            return self._confined(operation, tuple(given))
        if name in SYMBOLS and 1 < operation.result.kind.bits < 64:
            return (*given, self._own(operation))
        return tuple(given)

    def _sum(self, operation: Operation) -> Parts:
        """Whether the same sum in 64 bits is another number, and what had wrapped before it."""
        code, [given], result = self._code, operation.operands, operation.result
        found: Parts = ()
        if flow.is_sum(operation):
            signed = self.signed(result)
            wide = self._folded(operation, code.extended(given, "i64", signed), "addi")
            wrong = code.compare(NE, wide, code.extended(result, "i64", signed))
            found = (self._numbered(operation, wrong),)
        word = self.united(given)
        return found if word is None else (*found, Part(self._folded(operation, word, "ori")))

    def _folded(self, operation: Operation, given: Value, name: str) -> Value:
        """As the operation does, of these, with another one in its body."""
        code, element = self._code, given.kind.element
        arguments = tuple(code.value(Kind(element)) for _ in range(2))
        with code.at([]) as body:
            both = code.binary(name, *arguments)
            body.append(Operation(f"{operation.name}.return", (both,), (), {}, operation.source))
        region = Region((Block("bb0", arguments, tuple(body)),))
        made = code.value(operation.result.kind.of(element))
        code.operations.append(
            replace(operation, operands=(given,), results=(made,), regions=(region,))
        )
        return made

    def _confined(self, operation: Operation, given: Parts) -> Parts:
        """A wrapped number's low bits are right, and a mask without a sign keeps just them."""
        code = self._code
        for number, mask in (operation.operands, operation.operands[::-1]):
            if mask in self._constants:
                return ()
            if not self.of(mask):
                kept = code.compare(SGE, mask, code.constant(0, mask.kind))
                none = code.constant(0, mask.kind.of("i32"))
                return (Part(code.chosen(kept, none, self.sure(number))),)
        return given

    def _own(self, operation: Operation) -> Part:
        return self._numbered(operation, self._wrapped(operation, self.signed(operation.result)))

    def _numbered(self, operation: Operation, wrapped: Value) -> Part:
        code, kind = self._code, operation.result.kind.of("i32")
        bit = 1 << self._number(operation) % BITS
        return Part(code.chosen(wrapped, code.constant(bit, kind), code.constant(0, kind)))

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
        if name in ("muli", "shli"):
            wide = code.binary(
                name,
                code.extended(first, "i64", signed),
                code.extended(second, "i64", signed and name == "muli"),
            )
            return code.compare(NE, wide, code.extended(result, "i64", signed))
        if not signed:
            small = (result, first) if name == "addi" else (first, second)
            return code.compare(ULT, *small)
        other = code.binary("xori", *((second, result) if name == "addi" else (first, second)))
        both = code.binary("andi", code.binary("xori", first, result), other)
        return code.compare(SLT, both, code.constant(0, both.kind))
