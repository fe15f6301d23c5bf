"""Reads of uninitialized memory: `torch.empty` fills memory with a poison that a read recognizes.

A lane whose value is the poison reads once more: the aligned eight bytes around it, as far as its
tensor goes. Example: int16 0xFBFB at address 12 of a tensor that ends at 14 is uninitialized if
bytes 8 to 13 are all 0xFB; a value that happens to be 0xFBFB has a neighbour that differs. An
update has changed its element by then, so there the value alone decides. Elements of one byte are
not checked, since each of their values is a valid one.
"""

from __future__ import annotations

from harness.sanitizer.gpu import POISON
from harness.sanitizer.gpu.accesses import get_verb
from harness.sanitizer.gpu.graph_builder import EQ, GraphBuilder
from harness.sanitizer.gpu.pointer_bounds import PointerBoundsTracker
from harness.sanitizer.gpu.report_emission import ReportEmitter, reduce_to_nonzero_lane
from harness.sanitizer.ir.access_graph import find_mask, get_element_bytes
from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.violations.kinds import ViolationKind, to_word_bit

_WORD_BYTES = 8


class UninitializedReadChecks:
    def __init__(
        self, code: GraphBuilder, emitter: ReportEmitter, bounds_tracker: PointerBoundsTracker
    ) -> None:
        self._code, self._emitter, self._bounds_tracker = code, emitter, bounds_tracker

    def add_check(self, operation: IROperation) -> None:
        """Emit the check of an access, behind it."""
        code, pointer = self._code, operation.operands[0]
        verb, size = get_verb(operation), get_element_bytes(pointer)
        if verb == "write" or size == 1:
            return
        bits = code.to_bits(operation.result)
        poison = code.compare(EQ, bits, code.constant(_make_poison_pattern(size), bits.type))
        poison = code.apply_mask(poison, find_mask(operation))
        address = code.get_address(pointer)
        address = code.select(poison, address, code.constant(0, address.type))
        bounds = self._bounds_tracker.get_bounds(pointer)
        ends: tuple[IRValue, ...] = ()
        if bounds is not None:
            ends = self._bounds_tracker.to_report_operands(bounds, address.type.shape)
        address, *ends_of_lane = reduce_to_nonzero_lane(code, (address, *ends))
        poison = code.is_nonzero(address)
        if verb == "read" and size < _WORD_BYTES:
            around = self._emit_surrounding_poison(address, poison, *ends_of_lane)
            poison = code.binary("andi", poison, around)
        word = code.number_where(poison, to_word_bit(ViolationKind.UNINITIALIZED_READ))
        self._emitter.report(self._bounds_tracker.make_site(operation), word, address)

    def _emit_surrounding_poison(
        self, address: IRValue, is_poison: IRValue, *ends: IRValue
    ) -> IRValue:
        """Emit whether the eight bytes that an element lies in are all poison.

        `ends`: the start of its tensor and one more than its bytes, if these are known.
        """
        code, kind = self._code, address.type
        first = code.binary("andi", address, code.constant(-_WORD_BYTES, kind))
        read = self._bounds_tracker.load_int64(first, is_poison, volatile=True)
        differs = code.binary("xori", read, code.constant(_make_poison_pattern(_WORD_BYTES), kind))
        if ends:
            left = code.binary("subi", code.binary("addi", *ends), first)
            beyond = code.binary("subi", code.constant(_WORD_BYTES + 1, kind), left)
            beyond = code.binary("maxsi", beyond, code.constant(0, kind))
            beyond = code.binary("minsi", beyond, code.constant(_WORD_BYTES - 1, kind))
            bits_beyond = code.binary("shli", beyond, code.constant(3, kind))
            differs = code.binary("shli", differs, bits_beyond)
        return code.compare(EQ, differs, code.constant(0, kind))


def _make_poison_pattern(size: int) -> int:
    return int.from_bytes(bytes([POISON]) * size, "little", signed=True)
