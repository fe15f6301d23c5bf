"""Operations put into a graph, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from harness.kernels.graph import Kind, Operation, Source, Value

EQ, NE, SLT, SLE, SGT, SGE, ULT, UGE = 0, 1, 2, 3, 4, 5, 6, 9  # predicates of arith.cmpi


class Builder:
    def __init__(self, taken: Iterable[Value]) -> None:
        self._next = 1 + max((value.number for value in taken), default=-1)
        self.operations: list[Operation] = []
        self.source = Source()

    @contextmanager
    def at(self, operations: list[Operation]) -> Iterator[list[Operation]]:
        """What is put meanwhile goes there."""
        outer, self.operations = self.operations, operations
        try:
            yield operations
        finally:
            self.operations = outer

    def again(self, like: Operation, operands: Iterable[Value], kind: Kind) -> Value:
        """The same operation of others, at its own place in the source.

        What was promised of its result (`tt.…`) is not of this.
        """
        kept = {name: text for name, text in like.attributes.items() if not name.startswith("tt.")}
        here, self.source = self.source, like.source
        try:
            return self.emit(like.name, operands, kind, **kept)
        finally:
            self.source = here

    def value(self, kind: Kind) -> Value:
        self._next += 1
        return Value(self._next - 1, kind)

    def emit(
        self, name: str, operands: Iterable[Value], kind: Kind, **attributes: str | int
    ) -> Value:
        made = self.value(kind)
        texts = {key: str(text) for key, text in attributes.items()}
        self.operations.append(Operation(name, tuple(operands), (made,), texts, self.source))
        return made

    def constant(self, number: int, kind: Kind) -> Value:
        text = f"{number} : {kind.element}"
        if kind.shape:
            sides = "x".join(map(str, kind.shape))
            text = f"dense<{number}> : tensor<{sides}x{kind.element}>"
        return self.emit("arith.constant", (), kind, value=text)

    def splat(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self.emit("tt.splat", (value,), Kind(value.kind.element, shape)) if shape else value

    def binary(self, name: str, left: Value, right: Value, **attributes: str) -> Value:
        if name in ("addi", "subi", "muli", "shli"):
            attributes["overflowFlags"] = "#arith.overflow<none>"
        return self.emit(f"arith.{name}", (left, right), left.kind, **attributes)

    def compare(self, predicate: int, left: Value, right: Value) -> Value:
        return self.emit(
            "arith.cmpi",
            (left, right),
            left.kind.of("i1"),
            predicate=f"{predicate} : i64",
        )

    def chosen(self, condition: Value, true: Value, false: Value, **attributes: str) -> Value:
        """Lane by lane, or by one condition for all."""
        return self.emit("arith.select", (condition, true, false), true.kind, **attributes)

    def extended(self, value: Value, element: str, signed: bool) -> Value:
        name = "arith.extsi" if signed else "arith.extui"
        return self.emit(name, (value,), value.kind.of(element))

    def narrowed(self, value: Value, element: str) -> Value:
        flags = {"overflowFlags": "#arith.overflow<none>"}
        return self.emit("arith.trunci", (value,), value.kind.of(element), **flags)

    def bits(self, value: Value) -> Value:
        """A value as an integer of as many bits."""
        kind = value.kind
        if kind.is_pointer:
            return self.emit("tt.ptr_to_int", (value,), kind.of("i64"))
        if kind.is_integer:
            return value
        return self.emit("tt.bitcast", (value,), kind.of(f"i{kind.bits}"))
