"""Shapes of rows: a value for each row has the side 1 along the row's axis.

Example: along axis 1 a tile of 4 x 32 has row values of 4 x 1; the only row of a vector has a
scalar.
"""

from __future__ import annotations

from harness.sanitizer.gpu.graph_builder import SGE, SGT, SLE, SLT
from harness.sanitizer.ir.graph import IROperation, IRValue, ValueType
from harness.sanitizer.ir.operations import LANEWISE_OPERATIONS

SpreadPath = tuple[tuple[IROperation, int], ...]  # shape operations, each with its own axis


def to_row_kind(kind: ValueType, axis: int) -> ValueType:
    """Return the type of a value for each row; the only row of a vector is a scalar."""
    if len(kind.shape) == 1:
        return ValueType(kind.element)
    return ValueType(kind.element, (*kind.shape[:axis], 1, *kind.shape[axis + 1 :]))


def is_row(value: IRValue, axis: int) -> bool:
    return len(value.type.shape) > 1 and value.type.shape[axis] == 1


def map_axis_to_operand(definition: IROperation, axis: int) -> int | None:
    """Return the operand's axis that becomes this axis, if there is one."""
    [operand] = definition.operands
    if definition.name == "tt.expand_dims":
        new = definition.get_int("axis")
        return None if new == axis else axis - (new < axis)
    return axis if operand.type.shape and operand.type.shape[axis] > 1 else None


def is_elementwise(definition: IROperation) -> bool:
    if definition.name == "arith.constant":
        return False
    return definition.name.startswith("arith.") or definition.name in LANEWISE_OPERATIONS


def parse_comparison(definition: IROperation) -> tuple[IRValue, IRValue, int] | None:
    """Parse a comparison: the position, its end, and 1 if the end is included."""
    predicate, (left, right) = definition.get_int("predicate"), definition.operands
    if predicate in (SLT, SLE):
        return left, right, int(predicate == SLE)
    if predicate in (SGT, SGE):
        return right, left, int(predicate == SGE)
    return None


def format_row_constant(definition: IROperation, kind: ValueType) -> str:
    text = definition.attributes["value"].removeprefix("dense<").partition(">")[0]
    if kind.shape:
        return f"dense<{text}> : tensor<{'x'.join(map(str, kind.shape))}x{kind.element}>"
    return text if text in ("true", "false") else f"{text} : {kind.element}"
