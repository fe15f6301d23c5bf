"""The table of PTX's instructions: what each is to the reader, the executor and the checks.

To add one, add a row and its emitter; no other module has a set of instructions of its own
(`tests/sanitizer/ptx/test_operations.py`). Example: the row of `mad` says that its product and sum
may wrap, that the checks follow all three operands into an address, and that a pointer comes from
the third one. What has no row is read as if its first operand were its result, and is refused when
a kernel with it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.sanitizer.ptx import (
    async_ops,
    atomic_ops,
    call_ops,
    conversion_ops,
    float_ops,
    fragment_ops,
    integer_ops,
    matrix_ops,
    memory_ops,
    special_registers,
    warp_ops,
)
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.parser import PtxStatement
from harness.sanitizer.ptx.thread_code import ThreadCode


@dataclass(frozen=True, slots=True)
class PtxOperation:
    """A row: one instruction, whatever its modifiers. Operands count without the result."""

    # How the executor computes it
    emit: Callable[..., None] | None = None  # of the code and the instruction
    emit_float: float_ops.FloatEmitter | None = None  # with a type of float
    waits: bool = False  # a thread may suspend there: `emit` also gets the values that live on
    refusal: str = ""  # why it has no emitter
    # Its result
    no_result: bool = False
    result_with: str = ""  # it has a result with this modifier alone
    unless_address: bool = False  # it has none if its first operand is an address
    ends_thread: bool = False
    # Memory
    access: str = ""  # "read", "write" or "update", of values of its type by each thread
    addresses: tuple[int, ...] = ()  # the operands that are addresses
    pointers: tuple[int, ...] = ()  # the result points into the memory of one of these operands
    adds_index: bool = False  # one of them may be an index
    copies: bool = False  # the result is its operand
    from_memory: bool = False  # the results are what lies in memory
    own_companions: bool = False  # its emitter says which results depend on uninitialized words
    # Integers on their way into an address
    values: int = 0  # so many operands are part of the result; the others choose or shift
    exact: bool = False  # the true result follows from the true values of its operands
    wraps: bool = False  # the result may not fit
    wide: bool = False  # results of 64 bits are followed, too
    reads_sign: bool = False  # its type says how it reads its operands, not the result's use
    is_sum: bool = False
    is_product: bool = False  # what an overflow is put down to first
    true_llvm: str = ""  # the true result in 64 bits, for the executor
    true_ptx: str = ""  # and for a GPU

    def has_result(self, statement: PtxStatement) -> bool:
        if self.no_result or not statement.operands:
            return False
        if self.unless_address:
            return not statement.operands[0].startswith("[")
        return not self.result_with or self.result_with in statement.modifiers

    @property
    def keeps_difference(self) -> bool:
        """Whether a GPU's checks leave the difference of a wrapped operand as it is."""
        return self.reads_sign and not self.true_ptx


def find_operation(name: str) -> PtxOperation:
    """Return the row of an instruction, or of an operation of a graph that was read from PTX."""
    return OPERATIONS.get(name.removeprefix("ptx."), _UNKNOWN)


def _make_row(emit: Any = None, words: str = "", **columns: Any) -> PtxOperation:
    """Make a row; `words` are the columns that are true in it."""
    columns |= dict.fromkeys(words.split(), True)
    return PtxOperation(emit, **columns)


def _emit_nothing(code: ThreadCode, instruction: Instruction) -> None:
    """Do nothing: threads run one after another, and memory has no caches."""


_expression, _sum = integer_ops.make_expression_emitter, integer_ops.make_sum_emitter
_arithmetic, _library = float_ops.make_arithmetic_emitter, float_ops.make_library_emitter
_UNKNOWN = PtxOperation(refusal="it has no row")

OPERATIONS: dict[str, PtxOperation] = {
    # Registers and addresses
    "mov": _make_row(
        memory_ops.emit_move, "copies exact wide", pointers=(0,), values=1, true_ptx="mov.b64"
    ),
    "cvt": _make_row(conversion_ops.emit_conversion, "wraps wide", pointers=(0,), values=1),
    "cvta": _make_row(memory_ops.emit_cvta, "copies wide", pointers=(0,), values=1),
    "mapa": _make_row(async_ops.emit_mapa, pointers=(0,)),
    "selp": _make_row(float_ops.emit_selection, "exact wide", pointers=(0, 1), values=2),
    "set": _make_row(float_ops.emit_comparison),
    "setp": _make_row(float_ops.emit_comparison),
    "isspacep": _make_row(memory_ops.emit_isspacep),
    "special": _make_row(special_registers.emit_special_register),  # the reader's name for its read
    "createpolicy": _make_row(lambda code, instruction: code.set(instruction.results[0], "0", 64)),
    # Integers, bits and floats
    "add": _make_row(
        _sum("add"), "exact wraps wide is_sum adds_index", emit_float=_arithmetic("fadd"),
        pointers=(0, 1), values=2, true_llvm="add i64 {0}, {1}", true_ptx="add.s64",
    ),
    "sub": _make_row(
        _sum("sub"), "exact wraps wide is_sum", emit_float=_arithmetic("fsub"),
        pointers=(0,), values=2, true_llvm="sub i64 {0}, {1}", true_ptx="sub.s64",
    ),
    "mul": _make_row(
        integer_ops.emit_mul, "exact wraps wide is_product", emit_float=_arithmetic("fmul"),
        values=2, true_llvm="mul i64 {0}, {1}", true_ptx="mul.lo.s64",
    ),
    "mad": _make_row(
        integer_ops.emit_mad, "exact wraps wide is_sum is_product", emit_float=float_ops.emit_fma,
        pointers=(2,), values=3,
    ),
    "div": _make_row(
        _expression("call iN @SdivN(iN {0}, iN {1})"), "exact wide reads_sign", values=2,
        emit_float=float_ops.emit_division, true_llvm="call i64 @sdiv64(i64 {0}, i64 {1})",
    ),
    "rem": _make_row(
        _expression("call iN @SremN(iN {0}, iN {1})"), "exact wide reads_sign",
        values=2, true_llvm="call i64 @srem64(i64 {0}, i64 {1})",
    ),
    "min": _make_row(
        _expression("call iN @llvm.Smin.iN(iN {0}, iN {1})"), "exact wide reads_sign",
        emit_float=float_ops.emit_minimum, pointers=(0, 1), values=2,
        true_llvm="call i64 @llvm.smin.i64(i64 {0}, i64 {1})", true_ptx="min.s64",
    ),
    "max": _make_row(
        _expression("call iN @llvm.Smax.iN(iN {0}, iN {1})"), "exact wide reads_sign",
        emit_float=float_ops.emit_minimum, pointers=(0, 1), values=2,
        true_llvm="call i64 @llvm.smax.i64(i64 {0}, i64 {1})", true_ptx="max.s64",
    ),
    "neg": _make_row(
        _expression("sub iN 0, {0}"), "exact wraps is_sum", emit_float=float_ops.emit_sign,
        values=1, true_llvm="sub i64 0, {0}", true_ptx="neg.s64",
    ),
    # -1 - x on its way into a sum: the compiler makes `a - b - 1` of unsigned numbers `a + ~b`.
    # An unsigned use of another kind, as the shift of `~key >> 24`, means its 32 bits.
    "not": _make_row(
        _expression("xor iN {0}, -1"), "exact wraps",
        values=1, true_llvm="sub i64 -1, {0}", true_ptx="not.b64",
    ),
    "abs": _make_row(
        _expression("call iN @llvm.abs.iN(iN {0}, i1 false)"), emit_float=float_ops.emit_sign
    ),
    "shl": _make_row(integer_ops.emit_shift, "exact wraps wide is_product", values=1),
    "shr": _make_row(integer_ops.emit_shift, "exact wide reads_sign", values=1),
    "and": _make_row(_expression("and iN {0}, {1}"), "wide adds_index", pointers=(0, 1), values=2),
    "or": _make_row(_expression("or iN {0}, {1}"), "wide adds_index", pointers=(0, 1), values=2),
    "xor": _make_row(_expression("xor iN {0}, {1}")),
    "mul24": _make_row(integer_ops.emit_mul24),
    "mad24": _make_row(integer_ops.emit_mul24),
    "sad": _make_row(integer_ops.emit_sad),
    "dp4a": _make_row(integer_ops.emit_dot_product),
    "dp2a": _make_row(integer_ops.emit_dot_product),
    "popc": _make_row(_expression("call iN @llvm.ctpop.iN(iN {0})")),
    "clz": _make_row(_expression("call iN @llvm.ctlz.iN(iN {0}, i1 false)")),
    "brev": _make_row(_expression("call iN @llvm.bitreverse.iN(iN {0})")),
    "bfind": _make_row(integer_ops.emit_bfind),
    "bfe": _make_row(integer_ops.emit_bfe),
    "bfi": _make_row(integer_ops.emit_bfi),
    "bmsk": _make_row(integer_ops.emit_bmsk),
    "shf": _make_row(integer_ops.emit_funnel_shift),
    "prmt": _make_row(integer_ops.emit_prmt),
    "lop3": _make_row(integer_ops.emit_lop3),
    "fma": _make_row(emit_float=float_ops.emit_fma),
    "rcp": _make_row(emit_float=float_ops.emit_division),
    "sqrt": _make_row(emit_float=float_ops.emit_root),
    "rsqrt": _make_row(emit_float=float_ops.emit_root),
    "copysign": _make_row(emit_float=float_ops.emit_sign),
    "ex2": _make_row(emit_float=_library("exp2")),
    "lg2": _make_row(emit_float=_library("log2")),
    "sin": _make_row(emit_float=_library("sin")),
    "cos": _make_row(emit_float=_library("cos")),
    "tanh": _make_row(emit_float=_library("tanh")),
    # Memory
    "ld": _make_row(memory_ops.emit_load, "from_memory", access="read", addresses=(0,)),
    "ldu": _make_row(memory_ops.emit_load, "from_memory", access="read", addresses=(0,)),
    "st": _make_row(memory_ops.emit_store, "no_result", access="write", addresses=(0,)),
    "atom": _make_row(atomic_ops.emit_atomic, "from_memory", access="update", addresses=(0,)),
    "red": _make_row(atomic_ops.emit_atomic, "no_result", access="update", addresses=(0,)),
    "cp": _make_row(async_ops.emit_copy, "no_result", addresses=(0, 1, 3)),
    "ldmatrix": _make_row(
        fragment_ops.emit_matrix_load, "waits from_memory own_companions", addresses=(0,)
    ),
    "stmatrix": _make_row(fragment_ops.emit_matrix_store, "waits no_result", addresses=(0,)),
    "mma": _make_row(matrix_ops.emit_mma, "waits own_companions"),
    # Threads that wait for others
    "bar": _make_row(warp_ops.emit_barrier, "waits", result_with="red"),
    "barrier": _make_row(warp_ops.emit_barrier, "waits", result_with="red"),
    "mbarrier": _make_row(async_ops.emit_mbarrier, "waits unless_address", addresses=(0,)),
    "shfl": _make_row(warp_ops.emit_shuffle, "waits"),
    "vote": _make_row(warp_ops.emit_vote, "waits"),
    "redux": _make_row(warp_ops.emit_warp_reduction, "waits"),
    "match": _make_row(warp_ops.emit_match, "waits"),
    "activemask": _make_row(warp_ops.emit_active_mask, "waits"),
    "elect": _make_row(warp_ops.emit_elect, "waits"),
    # Control flow
    **dict.fromkeys(
        ("bra", "brx"), _make_row(None, "no_result", refusal="the reader ends a block with it")
    ),
    "ret": _make_row(call_ops.emit_exit, "no_result ends_thread"),
    "exit": _make_row(call_ops.emit_exit, "no_result ends_thread"),
    "trap": _make_row(call_ops.emit_trap, "no_result ends_thread"),
    "call": _make_row(call_ops.emit_call, "no_result"),
    # Without an effect here
    **dict.fromkeys(
        "applypriority discard fence griddepcontrol membar nanosleep pmevent prefetch prefetchu"
        " setmaxnreg".split(),
        _make_row(_emit_nothing, "no_result"),
    ),
    # Refused
    "brkpt": _make_row(None, "no_result", refusal="there is no debugger"),
    "clusterlaunchcontrol": _make_row(None, "unless_address", refusal="a cluster has one block"),
    "multimem": _make_row(refusal="there is one GPU", result_with="ld_reduce"),
    "tcgen05": _make_row(refusal="tensor memory and its products are not written"),
    "tensormap": _make_row(None, "no_result", refusal="tensor maps are not written"),
    "wgmma": _make_row(None, "no_result", refusal="asynchronous products are not written"),
}  # fmt: skip
