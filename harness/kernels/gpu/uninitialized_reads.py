"""Reads of what nobody wrote: what was made empty holds a pattern (`born`) until somebody writes.

A lane whose value is the pattern looks once more: at the eight bytes around it, as far as its
tensor goes. A number that happens to look like the pattern has a neighbour that does not. Of an
update, which has changed it by then, the number itself is believed. Elements of one byte are not
asked, since each byte is a value.
"""

from __future__ import annotations

from harness.kernels.cpu.scratch_values import OperationSite
from harness.kernels.gpu.access_checks import ACCESS_OPERATIONS, get_element_bytes, get_mask
from harness.kernels.gpu.empty_memory import POISON
from harness.kernels.gpu.graph_builder import EQ, NE, GraphBuilder
from harness.kernels.gpu.pointer_bounds import PointerBoundsTracker
from harness.kernels.gpu.report_emission import ReportEmitter, SiteReport, reduce_to_nonzero_lane
from harness.kernels.ir.graph import IROperation, IRValue

UNINITIALIZED_READ = 1 << 28  # in a report's word
_WORD_BYTES = 8  # bytes


class UninitializedReadChecks:
    def __init__(
        self,
        code: GraphBuilder,
        emitter: ReportEmitter,
        bounds_tracker: PointerBoundsTracker,
        pointer_numbers: dict[int, int],
        sites: list[OperationSite],
    ) -> None:
        self._code, self._emitter, self._bounds_tracker = code, emitter, bounds_tracker
        self._pointer_numbers, self._sites = pointer_numbers, sites

    def add_check(self, operation: IROperation) -> None:
        """Behind an access, as it was made."""
        verb, _ = ACCESS_OPERATIONS[operation.name]
        size = get_element_bytes(operation)
        if verb == "write" or size == 1:
            return
        code, pointer, mask = self._code, operation.operands[0], get_mask(operation)
        bits = code.to_bits(operation.result)
        empty = code.compare(EQ, bits, code.constant(_make_poison_pattern(size), bits.type))
        empty = empty if mask is None else code.binary("andi", empty, mask)
        address = code.emit("tt.ptr_to_int", (pointer,), pointer.type.with_element("i64"))
        at = code.select(empty, address, code.constant(0, address.type))
        reach = self._bounds_tracker.get_bounds(pointer)
        ends = (
            ()
            if reach is None
            else self._bounds_tracker.to_report_operands(reach, address.type.shape)
        )
        at, *whole = reduce_to_nonzero_lane(code, (at, *ends))
        empty = code.compare(NE, at, code.constant(0, at.type))
        if verb == "read" and size < _WORD_BYTES:
            empty = code.binary("andi", empty, self._emit_surrounding_poison(at, empty, *whole))
        kind = empty.type.with_element("i32")
        word = code.select(empty, code.constant(UNINITIALIZED_READ, kind), code.constant(0, kind))
        origin = self._bounds_tracker.origins.get(pointer)
        own = None if origin is None else self._pointer_numbers[origin]
        self._sites.append(OperationSite(verb, pointer.type.pointee, operation.source, own))
        self._emitter.report(SiteReport(len(self._sites) - 1, operation.source, word, at))

    def _emit_surrounding_poison(
        self, address: IRValue, is_poison: IRValue, *ends: IRValue
    ) -> IRValue:
        """Whether the eight bytes that an element lies in are all the pattern.

        `ends`: where what it is in begins, and one byte more than that has, if it is known.
        """
        code, kind = self._code, address.type
        first = code.binary("andi", address, code.constant(-_WORD_BYTES, kind))
        found = self._bounds_tracker.load_int64(first, is_poison, volatile=True)
        other = code.binary("xori", found, code.constant(_make_poison_pattern(_WORD_BYTES), kind))
        if ends:
            left = code.binary("subi", code.binary("addi", *ends), first)
            beyond = code.binary("subi", code.constant(_WORD_BYTES + 1, kind), left)
            beyond = code.binary("maxsi", beyond, code.constant(0, kind))
            beyond = code.binary("minsi", beyond, code.constant(_WORD_BYTES - 1, kind))
            other = code.binary("shli", other, code.binary("shli", beyond, code.constant(3, kind)))
        return code.compare(EQ, other, code.constant(0, kind))


def _make_poison_pattern(size: int) -> int:
    return int.from_bytes(bytes([POISON]) * size, "little", signed=True)
