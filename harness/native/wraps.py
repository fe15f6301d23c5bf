"""Twins of the integers that addresses are made of: which of them hold a wrapped number.

A twin is 0 or the number of a remembered wrap. It is computed beside its integer and looked at when
a lane that is on goes through the address; so a wrap that is masked, or only stored, is none.
"""

from __future__ import annotations

from harness.kernels.graph import Operation, Value
from harness.native.emitting import Lane, Values
from harness.native.formats import llvm_type, name_of

_SYMBOLS = {
    "arith.addi": ("+", "add"),
    "arith.subi": ("-", "sub"),
    "arith.muli": ("*", "mul"),
    "arith.shli": ("<<", ""),
    "arith.trunci": ("narrowed", ""),
}


class Wraps:
    def __init__(self, own: Values) -> None:
        self._own = own
        self.scalars: dict[Value, str] = {}
        self.buffers: dict[Value, str] = {}
        self.slots: dict[Value, str] = {}

    def twin(self, operation: Operation, value: str, given: list[Lane]) -> str | None:
        """Of an element-wise operation's result."""
        result = operation.result
        if result not in self._own.addressing:
            return None
        if operation.name == "arith.select":
            return self._chosen(given)
        twins = [twin for _, twin in given if twin is not None]
        united = self.united(twins)
        if operation.name == "arith.andi" and united is not None:
            united = self._confined(operation, given, united)
        if operation.name in _SYMBOLS and result.kind.is_integer and result.kind.bits > 1:
            return self._own_wrap(operation, value, given, united)
        return united

    def united(self, twins: list[str]) -> str | None:
        """The first that is a wrap."""
        code, united = self._own.code, None
        for twin in twins:
            if united is None:
                united = twin
            else:
                some = code.let(f"icmp ne i32 {united}, 0")
                united = code.let(f"select i1 {some}, i32 {united}, i32 {twin}")
        return united

    def _chosen(self, given: list[Lane]) -> str | None:
        (condition, _), (_, true), (_, false) = given
        if true is None and false is None:
            return None
        return self._own.code.let(f"select i1 {condition}, i32 {true or '0'}, i32 {false or '0'}")

    def _confined(self, operation: Operation, given: list[Lane], united: str) -> str:
        """A wrapped number's low bits are right, and a mask without a sign keeps just them."""
        code = self._own.code
        kind = llvm_type(operation.result.kind.element)
        for (_, number), (mask, other) in (given, given[::-1]):
            if number is not None and other is None:
                kept = code.let(f"icmp sge {kind} {mask}, 0")
                return code.let(f"select i1 {kept}, i32 0, i32 {united}")
        return united

    def _own_wrap(
        self, operation: Operation, value: str, given: list[Lane], united: str | None
    ) -> str:
        signed = self._own.addressing.signed[operation.result]
        kind = llvm_type(operation.result.kind.element)
        wrapped = self._does_not_fit(operation, value, [one for one, _ in given], signed)
        if wrapped is None:
            return united or "0"
        symbol, _ = _SYMBOLS[operation.name]
        element = operation.result.kind.element
        site = self._own.site(symbol, operation, element if signed else "u" + element)
        left = (given[0][0], llvm_type(operation.operands[0].kind.element))
        right = (given[1][0], kind) if len(given) > 1 else ("0", kind)
        return self.remembered(site, wrapped, signed, left, right, (value, kind), united)

    def remembered(
        self,
        site: int,
        wrapped: str,
        signed: bool,
        left: tuple[str, str],
        right: tuple[str, str],
        result: tuple[str, str],
        united: str | None,
    ) -> str:
        """The twin: a new number where this operation wrapped, else what was there."""
        code = self._own.code
        slot = code.slot("i32")
        code.store("i32", united or "0", slot)
        with code.when(wrapped):
            wide = [self._wide(*one, signed) for one in (left, right, result)]
            words = ", ".join(f"i64 {one}" for one in wide)
            number = code.let(f"call i32 @unfix_wrap(ptr %context, i64 {site}, {words})")
            code.store("i32", self.united([number, united or "0"]) or "0", slot)
        return code.load("i32", slot)

    def _wide(self, value: str, kind: str, signed: bool) -> str:
        if kind == "i64" or not value.startswith("%"):
            return value
        return self._own.code.let(f"{'sext' if signed else 'zext'} {kind} {value} to i64")

    def _does_not_fit(
        self, operation: Operation, value: str, given: list[str], signed: bool
    ) -> str | None:
        code = self._own.code
        kind = llvm_type(operation.result.kind.element)
        if operation.name == "arith.trunci":
            wide = llvm_type(operation.operands[0].kind.element)
            back = code.let(f"{'sext' if signed else 'zext'} {kind} {value} to {wide}")
            return code.let(f"icmp ne {wide} {back}, {given[0]}")
        if operation.name == "arith.shli":
            amount = code.let(
                f"call {kind} @llvm.umin.{kind}({kind} {given[1]}, {kind} {int(kind[1:]) - 1})"
            )
            back = code.let(f"{'ashr' if signed else 'lshr'} {kind} {value}, {amount}")
            return code.let(f"icmp ne {kind} {back}, {given[0]}")
        if not signed and kind == "i64" and operation.name != "arith.muli":
            return None
        _, name = _SYMBOLS[operation.name]
        name = f"{'s' if signed else 'u'}{name}"
        both = code.let(
            f"call {{ {kind}, i1 }} @llvm.{name}.with.overflow.{kind}"
            f"({kind} {given[0]}, {kind} {given[1]})"
        )
        return code.let(f"extractvalue {{ {kind}, i1 }} {both}, 1")

    def made(self, result: Value, room: str) -> None:
        """A result's twin lies in memory."""
        if result.kind.shape:
            self.buffers[result] = room
        else:
            self.scalars[result] = self._own.load_lane(room, "i32", "0")

    def pass_buffer(self, target: Value, source: str | None, size: int) -> None:
        """What control flow carries; zeros where nothing can have wrapped."""
        if source is not None:
            self._own.copy(self.buffers[target], source, size)
            return
        to = self._own.address(self.buffers[target])
        self._own.code.do(f"call void @llvm.memset.p0.i64(ptr {to}, i8 0, i64 {size}, i1 false)")


def integer_name(element: str) -> str:
    return f"u{name_of(element[1:])}" if element[0] == "u" else name_of(element)
