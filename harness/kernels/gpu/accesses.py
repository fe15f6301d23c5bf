"""The operations of Triton's IR that access memory, and the parts of one that checks need."""

from __future__ import annotations

from dataclasses import replace

from harness.kernels.ir.graph import IROperation, IRValue, ValueType

# By operation: the verb for a report, and the position of the mask among the operands.
ACCESS_OPERATIONS: dict[str, tuple[str, int | None]] = {
    "tt.load": ("read", 1),
    "tt.store": ("write", 2),
    "tt.atomic_rmw": ("update", 2),
    "tt.atomic_cas": ("update", None),
}


def get_verb(operation: IROperation) -> str:
    return ACCESS_OPERATIONS[operation.name][0]


def get_mask(operation: IROperation) -> IRValue | None:
    _, position = ACCESS_OPERATIONS[operation.name]
    if position is None or len(operation.operands) <= position:
        return None
    return operation.operands[position]


def replace_mask(operation: IROperation, mask: IRValue) -> IROperation:
    _, position = ACCESS_OPERATIONS[operation.name]
    assert position is not None
    operands = (*operation.operands[:position], mask, *operation.operands[position + 1 :])
    attributes = operation.attributes
    if "operandSegmentSizes" in attributes:
        others = len(operands) - 1 - position
        attributes = {**attributes, "operandSegmentSizes": f"array<i32: {position}, 1, {others}>"}
    return replace(operation, operands=operands, attributes=attributes)


def get_element_bytes(operation: IROperation) -> int:
    return max(1, ValueType(operation.operands[0].type.pointee).bits // 8)
