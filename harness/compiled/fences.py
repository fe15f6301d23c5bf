"""Fences in a kernel: what each program may touch, as intervals of addresses in order.

A launch with fences has a table more. For each pointer it says where what may be read is listed,
and where what may be written; there, how far apart the programs' lists are told (0: all have one),
and from where to where each program's lies. A list is looked through by halves, lane by lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.compiled.building import SLE, SLT, Builder
from harness.compiled.grid import Grid
from harness.compiled.reaches import Reaches
from harness.kernels.graph import Block, Kind, Operation, Region, Value

LONGEST = 1 << 14  # intervals of a list
READ, WRITE = 1 << 29, 1 << 30  # in a report's word
_BOTH = ("read", "write")
_WIDE = Kind("i64")
_END = 1 << 62


class Fences:
    def __init__(self, code: Builder, table: Value, reaches: Reaches, grid: Grid) -> None:
        self._code, self._table, self._reaches, self._grid = code, table, reaches, grid
        self._lists: dict[tuple[int, str], tuple[Value, Value]] = {}

    def crossed(self, verb: str, number: int, address: Value, size: int) -> Value:
        """A report's word: which fences of this pointer are crossed."""
        code, word = self._code, None
        for kind, bit in zip(_BOTH, (READ, WRITE), strict=True):
            if verb in (kind, "update"):
                bad = self._outside(number, kind, address, size)
                bits = code.constant(bit, bad.kind.of("i32"))
                own = code.chosen(bad, bits, code.constant(0, bits.kind))
                word = own if word is None else code.binary("ori", word, own)
        assert word is not None
        return word

    def _outside(self, number: int, kind: str, address: Value, size: int) -> Value:
        code, shape = self._code, address.kind.shape
        first, last = (code.splat(one, shape) for one in self._list(number, kind))
        place = self._found(first, last, address)
        start = self._loaded(place)
        end = self._loaded(code.binary("addi", place, code.constant(8, place.kind)))
        ends = code.binary("addi", address, code.constant(size, address.kind))
        return code.binary("ori", code.compare(SLT, address, start), code.compare(SLT, end, ends))

    def _found(self, first: Value, last: Value, address: Value) -> Value:
        """The last interval that begins there or before, or the first: in a loop, as unrolled it
        takes Triton seconds."""
        code, side = self._code, Kind("i32")
        turns = [code.constant(number, side) for number in (0, LONGEST.bit_length() - 1, 1)]
        turn, place, step = (code.value(kind) for kind in (side, first.kind, _WIDE))
        with code.at([]) as body:
            probe = code.binary("addi", place, code.splat(step, place.kind.shape))
            probe = code.binary("minsi", probe, last)
            before = code.compare(SLE, self._loaded(probe), address)
            nearer = code.chosen(before, probe, place)
            half = code.binary("shrsi", step, self._bytes(1))
            body.append(Operation("scf.yield", (nearer, half), (), {}, code.source))
        region = Region((Block("bb0", (turn, place, step), tuple(body)),))
        found = code.value(first.kind), code.value(_WIDE)
        given = (*turns, first, self._bytes(8 * LONGEST))
        code.operations.append(Operation("scf.for", given, found, {}, code.source, (region,)))
        return found[0]

    def _list(self, number: int, kind: str) -> tuple[Value, Value]:
        """Where this program's list begins, and its last interval."""
        code = self._code
        if (number, kind) not in self._lists:
            with code.at(self._reaches.entry):
                at = code.constant(16 * number + 8 * _BOTH.index(kind), _WIDE)
                lists = self._loaded(code.binary("addi", self._table, at))
                way = code.binary("muli", self._loaded(lists), self._grid.number)
                row = code.binary("addi", code.binary("addi", lists, way), self._bytes(8))
                last = self._loaded(code.binary("addi", row, self._bytes(8)))
                self._lists[number, kind] = self._loaded(row), last
        return self._lists[number, kind]

    def _bytes(self, count: int) -> Value:
        return self._code.constant(count, _WIDE)

    def _loaded(self, address: Value) -> Value:
        return self._reaches.loaded(address)


Intervals = Sequence[tuple[int, int]]


def table(lists: Sequence[tuple[Sequence[Intervals] | None, ...]], start: int) -> Any:
    """Of each pointer, for reads and writes, each program's intervals (None: anything goes), as a
    table that is to lie at `start`."""
    words = [0] * (2 * len(lists))
    anything = _put(words, [[(0, _END)]], start, 0)
    for number, both in enumerate(lists):
        for way, programs in enumerate(both):
            at = anything if programs is None else _put(words, programs, start, 16)
            words[2 * number + way] = at
    return np.array(words, dtype=np.int64)


def _put(words: list[int], programs: Sequence[Intervals], start: int, apart: int) -> int:
    at = len(words)
    words.append(apart)
    words += [0] * (2 * len(programs))
    for place, intervals in enumerate(programs):
        first = start + 8 * len(words)
        listed = [*intervals] or [(0, 0)]
        words += [side for interval in listed for side in interval]
        row = at + 1 + 2 * place
        words[row : row + 2] = first, first + 16 * (len(listed) - 1)
    return start + 8 * at
