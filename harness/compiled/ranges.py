"""What a number can be, whatever a kernel is given: a sum that always fits needs no watching.

Forwards, from constants, places in a block and widths; what a loop or a branch hands on may be
anything of its type.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.kernels.graph import Graph, Kind, Operation, Value

Range = tuple[int, int]
_SAME = frozenset(f"tt.{name}" for name in "splat broadcast expand_dims reshape trans".split())


class Ranges:
    """Each number as if it had a sign."""

    def __init__(self, graph: Graph) -> None:
        self._of: dict[Value, Range] = {}
        for operation in graph.operations():
            if len(operation.results) == 1 and _is_number(operation.result.kind):
                self._of[operation.result] = self._made(operation)

    def of(self, value: Value) -> Range:
        return self._of.get(value) or _whole(value.kind)

    def fits(self, operation: Operation, signed: bool) -> bool:
        """Whether the result is the true one, taken with that sign."""
        bits = operation.result.kind.bits
        if not signed and any(self.of(one)[0] < 0 for one in operation.operands):
            return False
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        true = self._true(operation)
        return true is not None and low <= true[0] and true[1] <= high

    def _made(self, operation: Operation) -> Range:
        low, high = _whole(operation.result.kind)
        true = self._true(operation)
        return true if true is not None and low <= true[0] and true[1] <= high else (low, high)

    def _true(self, operation: Operation) -> Range | None:
        name = operation.name
        if name == "arith.constant":
            return _constant(operation)
        if name == "tt.make_range":
            return operation.number("start"), operation.number("end") - 1
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            return 0, (1 << 31) - 1
        if name not in _KNOWN:
            return None
        given = [self.of(one) for one in operation.operands]
        if name in _SAME or name in ("arith.extsi", "arith.trunci"):
            return given[0]
        if name == "arith.extui":
            bits = operation.operands[0].kind.bits
            return given[0] if given[0][0] >= 0 else (0, (1 << bits) - 1)
        if name == "arith.andi":
            highest = [high for low, high in given if low >= 0]
            return (0, min(highest)) if highest else None
        if name in ("arith.remsi", "arith.remui"):
            (low, high), (least, most) = given
            return (0, min(high, most - 1)) if low >= 0 and least > 0 else None
        if name == "arith.shli":
            (low, high), (least, most) = given
            return (low << least, high << most) if low >= 0 and 0 <= least <= most < 64 else None
        return _ENDS[name](given[0], given[1])


def _product(one: Range, other: Range) -> Range:
    ends = [a * b for a in one for b in other]
    return min(ends), max(ends)


_ENDS: dict[str, Callable[[Range, Range], Range]] = {
    "arith.addi": lambda one, other: (one[0] + other[0], one[1] + other[1]),
    "arith.subi": lambda one, other: (one[0] - other[1], one[1] - other[0]),
    "arith.muli": _product,
    "arith.minsi": lambda one, other: (min(one[0], other[0]), min(one[1], other[1])),
    "arith.maxsi": lambda one, other: (max(one[0], other[0]), max(one[1], other[1])),
}
_KNOWN = (
    _SAME
    | _ENDS.keys()
    | {f"arith.{name}" for name in "extsi extui trunci andi remsi remui shli".split()}
)


def _is_number(kind: Kind) -> bool:
    return kind.is_integer and kind.bits > 1


def _whole(kind: Kind) -> Range:
    return -(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1


def _constant(operation: Operation) -> Range | None:
    text = operation.attributes["value"].removeprefix("dense<").partition(">")[0].split(":")[0]
    try:
        return int(text), int(text)
    except ValueError:  # one number a lane
        return None
