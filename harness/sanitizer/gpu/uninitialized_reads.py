"""Reads of uninitialized memory: `torch.empty` fills memory with a poison that a read recognizes.

A lane whose value is the poison reads once more: the aligned eight bytes around it, as far as its
tensor goes. Example: int16 0xFBFB at address 12 of a tensor that ends at 14 is uninitialized if
bytes 8 to 13 are all 0xFB; a value that happens to be 0xFBFB has a neighbour that differs. An
update has changed its element by then, so there the value alone decides. Elements of one byte are
not checked, since each of their values is a valid one.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.sanitizer.gpu import POISON
from harness.sanitizer.gpu.accesses import get_verb
from harness.sanitizer.gpu.graph_builder import EQ, GraphBuilder
from harness.sanitizer.gpu.pointer_bounds import PointerBoundsTracker
from harness.sanitizer.gpu.report_emission import reduce_to_nonzero_lane
from harness.sanitizer.ir.access_graph import find_mask, get_element_bytes
from harness.sanitizer.ir.graph import IROperation, IRValue

_WORD_BYTES = 8


def may_be_poison(access: IROperation) -> bool:
    return get_verb(access) != "write" and get_element_bytes(access.operands[0]) > 1


def find_poison(
    code: GraphBuilder, tracker: PointerBoundsTracker, operation: IROperation, address: IRValue
) -> tuple[IRValue, IRValue]:
    """Emit, behind an access, whether a lane read poison, and the address of one that did."""
    pointer = operation.operands[0]
    size = get_element_bytes(pointer)
    bits = code.to_bits(operation.result)
    poison = code.compare(EQ, bits, code.constant(_make_poison_pattern(size), bits.type))
    poison = code.apply_mask(poison, find_mask(operation))
    address = code.select(poison, address, code.constant(0, address.type))
    bounds = tracker.get_bounds(pointer)
    ends: tuple[IRValue, ...] = ()
    if bounds is not None:
        ends = tracker.to_report_operands(bounds, address.type.shape)
    address, *ends_of_lane = reduce_to_nonzero_lane(code, (address, *ends))
    poison = code.is_nonzero(address)
    if get_verb(operation) == "read" and size < _WORD_BYTES:
        first = code.binary("andi", address, code.constant(-_WORD_BYTES, address.type))
        word = tracker.load_int64(first, poison, volatile=True)
        poison = code.both(poison, _is_poison_word(code, word, first, ends_of_lane))
    return poison, address


def _is_poison_word(
    code: GraphBuilder, word: IRValue, address: IRValue, ends: Sequence[IRValue]
) -> IRValue:
    """Emit whether eight bytes are all poison, as far as their tensor goes.

    `ends`: the start of the tensor and one more than its bytes, if these are known.
    """
    kind = address.type
    differs = code.binary("xori", word, code.constant(_make_poison_pattern(_WORD_BYTES), kind))
    if ends:
        left = code.subtract(code.binary("addi", *ends), address)
        beyond = code.clamp_to_zero(code.subtract(code.constant(_WORD_BYTES + 1, kind), left))
        beyond = code.binary("minsi", beyond, code.constant(_WORD_BYTES - 1, kind))
        bits_beyond = code.binary("shli", beyond, code.constant(3, kind))
        differs = code.binary("shli", differs, bits_beyond)
    return code.compare(EQ, differs, code.constant(0, kind))


def _make_poison_pattern(size: int) -> int:
    return int.from_bytes(bytes([POISON]) * size, "little", signed=True)
