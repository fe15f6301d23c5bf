"""An access as checks need it: its verb in a report, and the same access with another mask."""

from __future__ import annotations

from dataclasses import replace

from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.ir.operations import MASK_POSITIONS, OPERATIONS


def get_verb(access: IROperation) -> str:
    return OPERATIONS[access.name].access


def replace_mask(access: IROperation, mask: IRValue) -> IROperation:
    position = MASK_POSITIONS[access.name]
    operands = (*access.operands[:position], mask, *access.operands[position + 1 :])
    attributes = access.attributes
    if "operandSegmentSizes" in attributes:
        others = len(operands) - 1 - position
        attributes = {**attributes, "operandSegmentSizes": f"array<i32: {position}, 1, {others}>"}
    return replace(access, operands=operands, attributes=attributes)
