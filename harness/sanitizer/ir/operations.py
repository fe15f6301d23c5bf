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
# The operand in another shape or, in range, in another type.
VALUE_PRESERVING = (
    SHAPE_OPERATIONS
    | _name_tt_operations("unsplat bitcast")
    | _name_arith_operations("extsi extui index_cast")
)
# Those whose result may be cut off, or be a part of the operand.
VALUE_TAKING = (
    VALUE_PRESERVING | _name_tt_operations("gather split") | _name_arith_operations("trunci")
)
# A loop over the result's lanes can compute the operand as well: no lane moves.
LANE_PRESERVING = _name_tt_operations("splat expand_dims reshape")
# The lanes along an axis become one, or one after the other.
FOLD_OPERATIONS = _name_tt_operations("reduce scan")
PROGRAM_QUERIES = _name_tt_operations("get_program_id get_num_programs")
ACCESS_OPERATIONS = _name_tt_operations("load store atomic_rmw atomic_cas")
# Where an access has its mask among its operands, if it has one.
MASK_POSITIONS = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}

# The result points into the memory that the first operand points into.
POINTER_PRESERVING = SHAPE_OPERATIONS | _name_tt_operations("addptr bitcast split gather")
# The result may point where any of the operands does.
POINTER_MERGING = _name_tt_operations("join cat") | _name_arith_operations("select")

# A sum or a difference.
SUM_OPERATIONS = _name_arith_operations("addi subi")
DIVISIONS = _name_arith_operations("divsi divui ceildivsi remsi remui")
# A bound on one operand of these is a bound on the result, whatever the other one is.
BOUNDED_BY_EITHER = _name_arith_operations("remsi remui minsi minui andi")
# The true result may not fit into the result's type.
OVERFLOWING_OPERATIONS = _name_arith_operations("addi subi muli shli trunci")
# How an operation reads its integer operands; else the result's uses decide.
SIGNED_OPERATIONS = _name_arith_operations("divsi remsi shrsi extsi minsi maxsi")
UNSIGNED_OPERATIONS = _name_arith_operations("divui extui minui maxui")
# The end of a block, and what it hands on.
TERMINATORS = frozenset(("scf.yield", "scf.condition", "cf.br", "cf.cond_br", "tt.return"))
CONTROL_FLOW_OPERATIONS = frozenset(("scf.for", "scf.while", "scf.if", "cf.br", "cf.cond_br"))
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
