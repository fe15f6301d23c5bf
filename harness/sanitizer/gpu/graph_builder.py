"""Emits operations into a graph, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from harness.sanitizer.ir.graph import IROperation, IRValue, SourceLocation, ValueType

EQ, NE, SLT, SLE, SGT, SGE, ULT, UGE = 0, 1, 2, 3, 4, 5, 6, 9  # predicates of arith.cmpi


class GraphBuilder:
    def __init__(self, existing_values: Iterable[IRValue]) -> None:
        self._next = 1 + max((value.number for value in existing_values), default=-1)
        self.operations: list[IROperation] = []
        self.source = SourceLocation()

    @contextmanager
    def insert_into(self, operations: list[IROperation]) -> Iterator[list[IROperation]]:
        """Emit into this list inside the block."""
        outer, self.operations = self.operations, operations
        try:
            yield operations
        finally:
            self.operations = outer

    def clone_operation(
        self, original: IROperation, operands: Iterable[IRValue], kind: ValueType
    ) -> IRValue:
        """Emit the same operation on other operands, at the same source location.

        Its hints (`tt.…`) are dropped: they are promises about the original result.
        """
        attributes = {
            name: text for name, text in original.attributes.items() if not name.startswith("tt.")
        }
        outer, self.source = self.source, original.source
        try:
            return self.emit(original.name, operands, kind, **attributes)
        finally:
            self.source = outer

    def new_value(self, kind: ValueType) -> IRValue:
        self._next += 1
        return IRValue(self._next - 1, kind)

    def emit(
        self, name: str, operands: Iterable[IRValue], kind: ValueType, **attributes: str | int
    ) -> IRValue:
        result = self.new_value(kind)
        texts = {key: str(text) for key, text in attributes.items()}
        self.operations.append(IROperation(name, tuple(operands), (result,), texts, self.source))
        return result

    def constant(self, number: int, kind: ValueType) -> IRValue:
        text = f"{number} : {kind.element}"
        if kind.shape:
            sides = "x".join(map(str, kind.shape))
            text = f"dense<{number}> : tensor<{sides}x{kind.element}>"
        return self.emit("arith.constant", (), kind, value=text)

    def splat(self, value: IRValue, shape: tuple[int, ...]) -> IRValue:
        """Return a value in all lanes; one that has the shape stays."""
        if value.type.shape == shape:
            return value
        return self.emit("tt.splat", (value,), ValueType(value.type.element, shape))

    def binary(self, name: str, left: IRValue, right: IRValue, **attributes: str) -> IRValue:
        if name in ("addi", "subi", "muli", "shli"):
            attributes["overflowFlags"] = "#arith.overflow<none>"
        return self.emit(f"arith.{name}", (left, right), left.type, **attributes)

    def compare(self, predicate: int, left: IRValue, right: IRValue) -> IRValue:
        return self.emit(
            "arith.cmpi",
            (left, right),
            left.type.with_element("i1"),
            predicate=f"{predicate} : i64",
        )

    def select(
        self, condition: IRValue, true: IRValue, false: IRValue, **attributes: str
    ) -> IRValue:
        """Select by lane, or by one condition for all lanes."""
        return self.emit("arith.select", (condition, true, false), true.type, **attributes)

    def extend(self, value: IRValue, element: str, signed: bool) -> IRValue:
        name = "arith.extsi" if signed else "arith.extui"
        return self.emit(name, (value,), value.type.with_element(element))

    def to_int64(self, value: IRValue) -> IRValue:
        """Return the value with 64 bits and its sign."""
        return value if value.type.bits == 64 else self.extend(value, "i64", signed=True)

    def truncate(self, value: IRValue, element: str) -> IRValue:
        flags = {"overflowFlags": "#arith.overflow<none>"}
        return self.emit("arith.trunci", (value,), value.type.with_element(element), **flags)

    def is_nonzero(self, value: IRValue) -> IRValue:
        return self.compare(NE, value, self.constant(0, value.type))

    def subtract(self, left: IRValue, right: IRValue) -> IRValue:
        return self.binary("subi", left, right)

    def clamp_to_zero(self, number: IRValue) -> IRValue:
        return self.binary("maxsi", number, self.constant(0, number.type))

    def is_at_least(self, left: IRValue, right: IRValue) -> IRValue:
        return self.compare(UGE, left, right)

    def both(self, first: IRValue, second: IRValue) -> IRValue:
        return self.binary("andi", first, second)

    def negate(self, condition: IRValue, **attributes: str) -> IRValue:
        return self.binary("xori", condition, self.constant(1, condition.type), **attributes)

    def apply_mask(self, condition: IRValue, mask: IRValue | None) -> IRValue:
        """Return the condition in the lanes that the mask enables; None enables all."""
        return condition if mask is None else self.both(condition, mask)

    def number_where(self, condition: IRValue, number: int, element: str = "i32") -> IRValue:
        """Return the number where the condition holds, and 0 elsewhere."""
        kind = condition.type.with_element(element)
        return self.select(condition, self.constant(number, kind), self.constant(0, kind))

    def get_address(self, pointer: IRValue) -> IRValue:
        return self.emit("tt.ptr_to_int", (pointer,), pointer.type.with_element("i64"))

    def point_to_int64(self, address: IRValue) -> IRValue:
        return self.emit("tt.int_to_ptr", (address,), address.type.with_element("ptr<i64>"))

    def end_block(self, name: str, values: Iterable[IRValue]) -> None:
        """Emit a block's terminator, which yields these values."""
        self.operations.append(IROperation(name, tuple(values), (), {}, self.source))

    def to_bits(self, value: IRValue) -> IRValue:
        """Return the value's bits as an integer."""
        kind = value.type
        if kind.is_pointer:
            return self.get_address(value)
        if kind.is_integer:
            return value
        return self.emit("tt.bitcast", (value,), kind.with_element(f"i{kind.bits}"))

    def pass_through_row(self, value: IRValue) -> IRValue:
        """Return a tensor by way of one with a single axis.

        Triton 3.8 ends in an assertion where the layout of a product's tile reaches the value of an
        atomic operation. It does not reach through this.
        """
        kind = value.type
        if len(kind.shape) < 2:
            return value
        row = self.emit("tt.reshape", (value,), ValueType(kind.element, (math.prod(kind.shape),)))
        return self.emit("tt.reshape", (row,), kind)
