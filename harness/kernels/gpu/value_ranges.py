"""What a number can be, whatever a kernel is given: a sum that always fits needs no watching.

Forwards, from constants, places in a block and widths; what a loop or a branch hands on may be
anything of its type.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.kernels.ir.graph import IROperation, IRValue, KernelGraph, ValueType
from harness.kernels.ir.operations import SHAPE_OPERATIONS

ValueRange = tuple[int, int]


class ValueRanges:
    """Each number as if it had a sign."""

    def __init__(self, graph: KernelGraph) -> None:
        self._ranges: dict[IRValue, ValueRange] = {}
        for operation in graph.walk():
            if len(operation.results) == 1 and _is_wide_integer(operation.result.type):
                self._ranges[operation.result] = self._compute_range(operation)

    def get_range(self, value: IRValue) -> ValueRange:
        return self._ranges.get(value) or _get_type_range(value.type)

    def is_overflow_free(self, operation: IROperation, signed: bool) -> bool:
        """Whether the result is the true one, taken with that sign."""
        bits = operation.result.type.bits
        if not signed and any(self.get_range(one)[0] < 0 for one in operation.operands):
            return False
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        true = self._compute_exact_range(operation)
        return true is not None and low <= true[0] and true[1] <= high

    def _compute_range(self, operation: IROperation) -> ValueRange:
        low, high = _get_type_range(operation.result.type)
        true = self._compute_exact_range(operation)
        return true if true is not None and low <= true[0] and true[1] <= high else (low, high)

    def _compute_exact_range(self, operation: IROperation) -> ValueRange | None:
        name = operation.name
        if name == "arith.constant":
            return _parse_constant_range(operation)
        if name == "tt.make_range":
            return operation.get_int("start"), operation.get_int("end") - 1
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            return 0, (1 << 31) - 1
        if name not in _SUPPORTED_OPERATIONS:
            return None
        given = [self.get_range(one) for one in operation.operands]
        if name in SHAPE_OPERATIONS or name in ("arith.extsi", "arith.trunci"):
            return given[0]
        if name == "arith.extui":
            bits = operation.operands[0].type.bits
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
        return _RANGE_RULES[name](given[0], given[1])


def _multiply_ranges(one: ValueRange, other: ValueRange) -> ValueRange:
    ends = [a * b for a in one for b in other]
    return min(ends), max(ends)


_RANGE_RULES: dict[str, Callable[[ValueRange, ValueRange], ValueRange]] = {
    "arith.addi": lambda one, other: (one[0] + other[0], one[1] + other[1]),
    "arith.subi": lambda one, other: (one[0] - other[1], one[1] - other[0]),
    "arith.muli": _multiply_ranges,
    "arith.minsi": lambda one, other: (min(one[0], other[0]), min(one[1], other[1])),
    "arith.maxsi": lambda one, other: (max(one[0], other[0]), max(one[1], other[1])),
}
_SUPPORTED_OPERATIONS = (
    SHAPE_OPERATIONS
    | _RANGE_RULES.keys()
    | {f"arith.{name}" for name in "extsi extui trunci andi remsi remui shli".split()}
)


def _is_wide_integer(kind: ValueType) -> bool:
    return kind.is_integer and kind.bits > 1


def _get_type_range(kind: ValueType) -> ValueRange:
    return -(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1


def _parse_constant_range(operation: IROperation) -> ValueRange | None:
    text = operation.attributes["value"].removeprefix("dense<").partition(">")[0].split(":")[0]
    try:
        return int(text), int(text)
    except ValueError:  # one number a lane
        return None
