"""The table of Triton's operations: what each is to the analyses and to every back end.

To add one, add a row, and its emitter to the CPU's back end (`cpu/elementwise_ops`, `cpu/view_ops`,
or `cpu/lowering`), or say in the row why it has none. Example: `tt.reshape` holds its operand's
elements in another shape (`shape`); `tt.addptr` does not: it computes, and its result points where
its first operand does (`keeps_pointer`). The sets below the table are its columns, for an
analysis that asks whether an operation is of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TritonOperation:
    refusal: str = ""  # why the CPU's back end has no emitter for it
    has_no_effect: bool = False
    # Elements and lanes
    shape: bool = False  # the elements of the operand in another shape or order, and no other ones
    spreads: bool = False  # the elements of the operand, repeated
    same_lanes: bool = False  # a loop over the result's lanes can compute the operand as well
    lanewise: bool = False  # of an integer or a pointer, lane by lane, beside all of `arith`
    folds: bool = False  # the lanes along an axis become one, or one after the other
    is_product: bool = False  # of two tiles, which a GPU stages in shared memory
    has_function: bool = False  # its region is a function of elements
    # Values
    keeps_value: bool = False  # the operand's value, in range, in another type
    takes_value: bool = False  # it may be cut off, or be a part of the operand
    resizes: bool = False  # an integer of another width
    casts_pointer: bool = False  # the same bits seen as another type, or as a number
    keeps_pointer: bool = False  # the result points into the memory that the first operand does
    merges_pointers: bool = False  # the result may point where any of the operands does
    queries_grid: bool = False
    # Memory
    access: str = ""  # "read", "write" or "update"
    mask: int | None = None  # where an access has its mask among its operands, if it has one
    # Integers on their way into an address
    forms_address: bool = False  # an integer operand becomes part of the result
    symbol: str = ""  # in a report: the true result may not fit into the result's type
    reads_signed: bool = False  # how it reads its integer operands; else the result's uses decide
    reads_unsigned: bool = False
    is_sum: bool = False
    is_division: bool = False
    bounded_by_either: bool = False  # a bound on one operand is a bound on the result
    # Control flow
    branches: bool = False
    ends_block: bool = False


def _make_row(words: str = "", **columns: Any) -> TritonOperation:
    """Make a row; `words` are the columns that are true in it."""
    columns |= dict.fromkeys(words.split(), True)
    return TritonOperation(**columns)


def _make_rows(names: str, words: str = "", **columns: Any) -> dict[str, TritonOperation]:
    """Make the same row for several operations of one dialect."""
    dialect, *each = names.split()
    return {f"{dialect}.{name}": _make_row(words, **columns) for name in each}


OPERATIONS: dict[str, TritonOperation] = {
    # Shapes
    "tt.splat": _make_row("shape spreads same_lanes keeps_value takes_value keeps_pointer"),
    "tt.broadcast": _make_row("shape spreads keeps_value takes_value keeps_pointer"),
    "tt.expand_dims": _make_row("shape spreads same_lanes keeps_value takes_value keeps_pointer"),
    "tt.reshape": _make_row("shape same_lanes keeps_value takes_value keeps_pointer"),
    "tt.trans": _make_row("shape keeps_value takes_value keeps_pointer"),
    "tt.unsplat": _make_row("keeps_value takes_value forms_address"),
    "tt.gather": _make_row("takes_value keeps_pointer forms_address"),
    "tt.split": _make_row("takes_value keeps_pointer forms_address"),
    **_make_rows("tt join cat", "merges_pointers"),
    **_make_rows("tt reduce scan", "folds has_function forms_address", symbol="sum"),
    "tt.map_elementwise": _make_row("has_function"),
    # Numbers and grids
    "arith.constant": _make_row(),
    "ub.poison": _make_row(),
    "tt.make_range": _make_row(),
    **_make_rows("tt get_program_id get_num_programs", "queries_grid"),
    # Pointers
    "tt.addptr": _make_row("lanewise keeps_pointer forms_address"),
    "tt.bitcast": _make_row("lanewise keeps_value takes_value casts_pointer keeps_pointer"),
    **_make_rows("tt ptr_to_int int_to_ptr", "lanewise casts_pointer"),
    # Memory
    "tt.load": _make_row(access="read", mask=1),
    "tt.store": _make_row(access="write", mask=2),
    "tt.atomic_rmw": _make_row(access="update", mask=2),
    "tt.atomic_cas": _make_row(access="update"),
    # Integers
    "arith.addi": _make_row("is_sum", symbol="+"),
    "arith.subi": _make_row("is_sum", symbol="-"),
    "arith.muli": _make_row(symbol="*"),
    "arith.shli": _make_row(symbol="<<"),
    "arith.trunci": _make_row("takes_value resizes", symbol="narrowed"),
    "arith.divsi": _make_row("is_division reads_signed"),
    "arith.divui": _make_row("is_division reads_unsigned"),
    "arith.ceildivsi": _make_row("is_division", refusal="Triton makes none"),
    "arith.remsi": _make_row("is_division reads_signed bounded_by_either"),
    "arith.remui": _make_row("is_division bounded_by_either"),
    "arith.minsi": _make_row("reads_signed bounded_by_either"),
    "arith.minui": _make_row("reads_unsigned bounded_by_either"),
    "arith.maxsi": _make_row("reads_signed"),
    "arith.maxui": _make_row("reads_unsigned"),
    "arith.shrsi": _make_row("reads_signed"),
    "arith.shrui": _make_row(),
    "arith.andi": _make_row("bounded_by_either forms_address"),
    **_make_rows("arith ori xori", "forms_address"),
    "arith.extsi": _make_row("keeps_value takes_value resizes reads_signed"),
    "arith.extui": _make_row("keeps_value takes_value resizes reads_unsigned"),
    "arith.index_cast": _make_row("keeps_value takes_value forms_address"),
    "arith.select": _make_row("merges_pointers"),
    "arith.cmpi": _make_row(),
    "math.absi": _make_row("lanewise forms_address"),
    **_make_rows("math ctpop ctlz cttz"),
    "tt.mulhiui": _make_row(),
    "tt.histogram": _make_row(),
    # Floats
    **_make_rows("arith addf subf mulf divf remf negf cmpf minnumf maxnumf minimumf maximumf"),
    **_make_rows("arith sitofp uitofp fptosi fptoui extf truncf bitcast"),
    **_make_rows("math absf fma sqrt rsqrt floor ceil exp exp2 log log2 sin cos erf tanh"),
    **_make_rows("tt fp_to_fp clampf precise_divf precise_sqrt"),
    **_make_rows("tt dot dot_scaled", "is_product"),
    **_make_rows("tt extern_elementwise elementwise_inline_asm"),
    # Control flow
    **_make_rows("scf for if while", "branches"),
    **_make_rows("cf br cond_br", "branches ends_block"),
    **_make_rows("scf yield condition", "ends_block"),
    "tt.return": _make_row("ends_block has_no_effect"),
    **_make_rows("tt reduce.return scan.return map_elementwise.return"),
    "tt.call": _make_row(refusal="calls that are not inlined"),
    # Without an effect on the CPU, where programs run one by one
    **_make_rows("llvm intr.assume", "has_no_effect"),
    **_make_rows("ttg barrier local_barrier", "has_no_effect"),
    **_make_rows("gpu barrier", "has_no_effect"),
    **_make_rows("tt assert print"),
}


def _select_names(*columns: str) -> frozenset[str]:
    """Return the operations of which one of the columns is true."""
    return frozenset(
        name for name, row in OPERATIONS.items() if any(getattr(row, one) for one in columns)
    )


SPREADING_OPERATIONS = _select_names("spreads")
SHAPE_OPERATIONS = _select_names("shape")
LANE_PRESERVING = _select_names("same_lanes")
LANEWISE_OPERATIONS = _select_names("lanewise")
FOLD_OPERATIONS = _select_names("folds")
OPERATIONS_WITH_FUNCTION = _select_names("has_function")
VALUE_PRESERVING = _select_names("keeps_value")
VALUE_TAKING = _select_names("takes_value")
RESIZING_OPERATIONS = _select_names("resizes")
POINTER_PRESERVING = _select_names("keeps_pointer")
POINTER_MERGING = _select_names("merges_pointers")
PROGRAM_QUERIES = _select_names("queries_grid")
ACCESS_OPERATIONS = _select_names("access")
MASK_POSITIONS = {name: row.mask for name, row in OPERATIONS.items() if row.mask is not None}
SUM_OPERATIONS = _select_names("is_sum")
DIVISIONS = _select_names("is_division")
BOUNDED_BY_EITHER = _select_names("bounded_by_either")
OVERFLOW_SYMBOLS = {name: row.symbol for name, row in OPERATIONS.items() if row.symbol}
OVERFLOWING_OPERATIONS = _select_names("symbol") - FOLD_OPERATIONS
SIGNED_OPERATIONS = _select_names("reads_signed")
UNSIGNED_OPERATIONS = _select_names("reads_unsigned")
INTEGER_ARITHMETIC = OVERFLOWING_OPERATIONS | _select_names(
    "forms_address", "reads_signed", "reads_unsigned", "shape", "merges_pointers", "casts_pointer"
)
TERMINATORS = _select_names("ends_block")
CONTROL_FLOW_OPERATIONS = _select_names("branches")
PRODUCT_OPERATIONS = _select_names("is_product")
EXCHANGING_OPERATIONS = _select_names("is_product", "folds", "shape") - SPREADING_OPERATIONS
IGNORED_OPERATIONS = _select_names("has_no_effect")
