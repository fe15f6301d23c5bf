"""Reads of what nobody wrote: what was made empty holds a pattern (`born`) until somebody writes.

A lane whose value is the pattern looks once more: at the eight bytes around it, as far as its
tensor goes. A number that happens to look like the pattern has a neighbour that does not. Of an
update, which has changed it by then, the number itself is believed. Elements of one byte are not
asked, since each byte is a value.
"""

from __future__ import annotations

from harness.compiled.accesses import ACCESSES, masked_by, size_of
from harness.compiled.born import POISON
from harness.compiled.building import EQ, NE, Builder
from harness.compiled.reaches import Reaches
from harness.compiled.telling import Teller, Told, one_of
from harness.kernels.graph import Operation, Value
from harness.native.lanes import Site

UNWRITTEN = 1 << 28  # in a report's word
_WORD = 8  # bytes


class Unwritten:
    def __init__(
        self,
        code: Builder,
        teller: Teller,
        reaches: Reaches,
        places: dict[int, int],
        sites: list[Site],
    ) -> None:
        self._code, self._teller, self._reaches = code, teller, reaches
        self._places, self._sites = places, sites

    def follow(self, operation: Operation) -> None:
        """Behind an access, as it was made."""
        verb, _ = ACCESSES[operation.name]
        size = size_of(operation)
        if verb == "write" or size == 1:
            return
        code, pointer, mask = self._code, operation.operands[0], masked_by(operation)
        bits = code.bits(operation.result)
        empty = code.compare(EQ, bits, code.constant(_pattern(size), bits.kind))
        empty = empty if mask is None else code.binary("andi", empty, mask)
        address = code.emit("tt.ptr_to_int", (pointer,), pointer.kind.of("i64"))
        at = code.chosen(empty, address, code.constant(0, address.kind))
        reach = self._reaches.of(pointer)
        ends = () if reach is None else self._reaches.operands(reach, address.kind.shape)
        at, *whole = one_of(code, (at, *ends))
        empty = code.compare(NE, at, code.constant(0, at.kind))
        if verb == "read" and size < _WORD:
            empty = code.binary("andi", empty, self._around(at, empty, *whole))
        kind = empty.kind.of("i32")
        word = code.chosen(empty, code.constant(UNWRITTEN, kind), code.constant(0, kind))
        origin = self._reaches.origins.get(pointer)
        own = None if origin is None else self._places[origin]
        self._sites.append(Site(verb, pointer.kind.pointee, operation.source, own))
        self._teller.tell(Told(len(self._sites) - 1, operation.source, word, at))

    def _around(self, at: Value, empty: Value, *ends: Value) -> Value:
        """Whether the eight bytes that an element lies in are all the pattern.

        `ends`: where what it is in begins, and one byte more than that has, if it is known.
        """
        code, kind = self._code, at.kind
        first = code.binary("andi", at, code.constant(-_WORD, kind))
        found = self._reaches.loaded(first, empty, anew=True)
        other = code.binary("xori", found, code.constant(_pattern(_WORD), kind))
        if ends:
            left = code.binary("subi", code.binary("addi", *ends), first)
            beyond = code.binary("subi", code.constant(_WORD + 1, kind), left)
            beyond = code.binary("maxsi", beyond, code.constant(0, kind))
            beyond = code.binary("minsi", beyond, code.constant(_WORD - 1, kind))
            other = code.binary("shli", other, code.binary("shli", beyond, code.constant(3, kind)))
        return code.compare(EQ, other, code.constant(0, kind))


def _pattern(size: int) -> int:
    return int.from_bytes(bytes([POISON]) * size, "little", signed=True)
