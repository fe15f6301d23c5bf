"""Sets of IR operations by their effect, for every back end and analysis.

A set is named after the property that its operations share. Example: `tt.reshape` is in
`SHAPE_OPERATIONS`: its result holds its operand's elements in another shape. `tt.addptr` is not: it
computes.
"""

from __future__ import annotations


def _name_tt_operations(names: str) -> frozenset[str]:
    return frozenset(f"tt.{name}" for name in names.split())


def _name_arith_operations(names: str) -> frozenset[str]:
    return frozenset(f"arith.{name}" for name in names.split())


# The elements of the operand, repeated.
SPREADING_OPERATIONS = _name_tt_operations("splat broadcast expand_dims")
# The elements of the operand in another shape or order, and no other ones.
SHAPE_OPERATIONS = SPREADING_OPERATIONS | _name_tt_operations("reshape trans")
# The same bits seen as another type, or a pointer moved within its memory.
POINTER_CASTS = _name_tt_operations("bitcast ptr_to_int int_to_ptr")
ACCESS_OPERATIONS = _name_tt_operations("load store atomic_rmw atomic_cas")

# The result points into the memory that the first operand points into.
POINTER_PRESERVING = SHAPE_OPERATIONS | _name_tt_operations("addptr bitcast split gather")
# The result may point where any of the operands does.
POINTER_MERGING = _name_tt_operations("join cat") | _name_arith_operations("select")

# The true result may not fit into the result's type.
OVERFLOWING_OPERATIONS = _name_arith_operations("addi subi muli shli trunci")
# How an operation reads its integer operands; else the result's uses decide.
SIGNED_OPERATIONS = _name_arith_operations("divsi remsi shrsi extsi minsi maxsi")
UNSIGNED_OPERATIONS = _name_arith_operations("divui extui minui maxui")
# An integer operand becomes part of the result.
INTEGER_ARITHMETIC = (
    OVERFLOWING_OPERATIONS
    | SIGNED_OPERATIONS
    | UNSIGNED_OPERATIONS
    | SHAPE_OPERATIONS
    | POINTER_MERGING
    | POINTER_CASTS
    | _name_arith_operations("andi ori xori index_cast")
    | _name_tt_operations("split gather reduce scan unsplat addptr")
    | {"math.absi"}
)
