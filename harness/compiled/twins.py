"""Twins of the integers that addresses are made of: bits for what wrapped on the way.

The same integers as on a CPU, by the same `flow`. A twin is computed beside its integer and
looked at when a lane that is on goes through the address. Sums over a tensor, `while` and what a
branch of the function hands on are not followed here.
"""

from __future__ import annotations

from harness.compiled.building import NE, SGE, SLT, ULT, Builder
from harness.kernels.flow import Addressing
from harness.kernels.graph import Operation, Value

SYMBOLS = {
    "arith.addi": "+",
    "arith.subi": "-",
    "arith.muli": "*",
    "arith.shli": "<<",
    "arith.trunci": "narrowed",
}
BITS = 31  # the highest one of a word is an access outside of its tensor
_MOVED = frozenset(
    f"tt.{name}" for name in "splat broadcast expand_dims reshape trans unsplat".split()
)
_SAME_SHAPE = frozenset({"tt.addptr", "tt.bitcast", "tt.ptr_to_int", "tt.int_to_ptr", "math.absi"})


class Twins:
    def __init__(self, code: Builder, addressing: Addressing) -> None:
        self._code, self._addressing = code, addressing
        self._of: dict[Value, Value] = {}
        self.wraps: list[Operation] = []  # by number, from which a wrap's bit comes

    def __contains__(self, value: Value) -> bool:
        return value in self._addressing

    def signed(self, value: Value) -> bool:
        return self._addressing.signed[value]

    def of(self, value: Value) -> Value | None:
        return self._of.get(value)

    def sure(self, value: Value) -> Value:
        """Its twin, or zeros."""
        return self._of.get(value) or self._code.constant(0, value.kind.of("i32"))

    def arrives(self, value: Value) -> Value:
        """A twin that control flow hands over with a value."""
        self._of[value] = self._code.value(value.kind.of("i32"))
        return self._of[value]

    def follow(self, operation: Operation) -> None:
        """Put the twins of an operation's results behind it."""
        if len(operation.results) != 1 or operation.result not in self:
            return
        twin = self._twin(operation)
        if twin is not None:
            self._of[operation.result] = twin

    def _twin(self, operation: Operation) -> Value | None:
        code, name = self._code, operation.name
        if name in _MOVED:
            twin = self.of(operation.operands[0])
            if twin is None:
                return None
            return code.emit(name, (twin,), operation.result.kind.of("i32"), **operation.attributes)
        if name == "arith.select":
            condition, true, false = operation.operands
            if self.of(true) is None and self.of(false) is None:
                return None
            return code.chosen(condition, self.sure(true), self.sure(false))
        if not (name.startswith("arith.") or name in _SAME_SHAPE):
            return None
        united = self._united(operation)
        if name == "arith.andi" and united is not None:
            return self._confined(operation, united)
        if name in SYMBOLS:
            return self._own(operation, united)
        return united

    def _united(self, operation: Operation) -> Value | None:
        united = None
        for operand in operation.operands:
            twin = self.of(operand)
            if twin is not None:
                united = twin if united is None else self._code.binary("ori", united, twin)
        return united

    def _confined(self, operation: Operation, united: Value) -> Value:
        """A wrapped number's low bits are right, and a mask without a sign keeps just them."""
        code = self._code
        for mask in operation.operands:
            if self.of(mask) is None:
                kept = code.compare(SGE, mask, code.constant(0, mask.kind))
                return code.chosen(kept, code.constant(0, united.kind), united)
        return united

    def _own(self, operation: Operation, united: Value | None) -> Value | None:
        code, result = self._code, operation.result
        if not 1 < result.kind.bits < 64:
            return united
        wrapped = self._wrapped(operation, self.signed(result))
        self.wraps.append(operation)
        bit = 1 << (len(self.wraps) - 1) % BITS
        twin = result.kind.of("i32")
        own = code.chosen(wrapped, code.constant(bit, twin), code.constant(0, twin))
        return own if united is None else code.binary("ori", own, united)

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
