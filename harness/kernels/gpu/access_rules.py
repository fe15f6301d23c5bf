"""Fences in a kernel: what each program may touch, as intervals of addresses in order.

A launch with fences has a table more. For each pointer it says where what may be read is listed,
and where what may be written; there, how far apart the programs' lists are told (0: all have one),
and from where to where each program's lies. A list is looked through by halves, lane by lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.kernels.gpu.graph_builder import SLE, SLT, GraphBuilder
from harness.kernels.gpu.pointer_bounds import PointerBoundsTracker
from harness.kernels.gpu.program_grid import ProgramGrid
from harness.kernels.ir.graph import IRBlock, IROperation, IRRegion, IRValue, ValueType

MAX_INTERVALS = 1 << 14  # intervals of a list
READ_VIOLATION, WRITE_VIOLATION = 1 << 29, 1 << 30  # in a report's word
_ACCESS_KINDS = ("read", "write")
_INT64 = ValueType("i64")
_MAX_ADDRESS = 1 << 62


class AccessRuleChecks:
    def __init__(
        self,
        code: GraphBuilder,
        table: IRValue,
        bounds_tracker: PointerBoundsTracker,
        grid: ProgramGrid,
    ) -> None:
        self._code, self._table, self._bounds_tracker, self._grid = (
            code,
            table,
            bounds_tracker,
            grid,
        )
        self._interval_lists: dict[tuple[int, str], tuple[IRValue, IRValue]] = {}

    def emit_violation_word(
        self, verb: str, pointer_number: int, address: IRValue, size: int
    ) -> IRValue:
        """A report's word: which fences of this pointer are crossed."""
        code, word = self._code, None
        for kind, bit in zip(_ACCESS_KINDS, (READ_VIOLATION, WRITE_VIOLATION), strict=True):
            if verb in (kind, "update"):
                bad = self._emit_outside(pointer_number, kind, address, size)
                bits = code.constant(bit, bad.type.with_element("i32"))
                own = code.select(bad, bits, code.constant(0, bits.type))
                word = own if word is None else code.binary("ori", word, own)
        assert word is not None
        return word

    def _emit_outside(self, pointer_number: int, kind: str, address: IRValue, size: int) -> IRValue:
        code, shape = self._code, address.type.shape
        first, last = (
            code.splat(one, shape) for one in self._load_interval_list(pointer_number, kind)
        )
        place = self._emit_interval_search(first, last, address)
        start = self._load(place)
        end = self._load(code.binary("addi", place, code.constant(8, place.type)))
        ends = code.binary("addi", address, code.constant(size, address.type))
        return code.binary("ori", code.compare(SLT, address, start), code.compare(SLT, end, ends))

    def _emit_interval_search(self, first: IRValue, last: IRValue, address: IRValue) -> IRValue:
        """The last interval that begins there or before, or the first: in a loop, as unrolled it
        takes Triton seconds."""
        code, side = self._code, ValueType("i32")
        turns = [code.constant(number, side) for number in (0, MAX_INTERVALS.bit_length() - 1, 1)]
        turn, place, step = (code.new_value(kind) for kind in (side, first.type, _INT64))
        with code.insert_into([]) as body:
            probe = code.binary("addi", place, code.splat(step, place.type.shape))
            probe = code.binary("minsi", probe, last)
            before = code.compare(SLE, self._load(probe), address)
            nearer = code.select(before, probe, place)
            half = code.binary("shrsi", step, self._int64_constant(1))
            body.append(IROperation("scf.yield", (nearer, half), (), {}, code.source))
        region = IRRegion((IRBlock("bb0", (turn, place, step), tuple(body)),))
        found = code.new_value(first.type), code.new_value(_INT64)
        given = (*turns, first, self._int64_constant(8 * MAX_INTERVALS))
        code.operations.append(IROperation("scf.for", given, found, {}, code.source, (region,)))
        return found[0]

    def _load_interval_list(self, pointer_number: int, kind: str) -> tuple[IRValue, IRValue]:
        """Where this program's list begins, and its last interval."""
        code = self._code
        if (pointer_number, kind) not in self._interval_lists:
            with code.insert_into(self._bounds_tracker.entry_operations):
                at = code.constant(16 * pointer_number + 8 * _ACCESS_KINDS.index(kind), _INT64)
                lists = self._load(code.binary("addi", self._table, at))
                way = code.binary("muli", self._load(lists), self._grid.program_number)
                row = code.binary("addi", code.binary("addi", lists, way), self._int64_constant(8))
                last = self._load(code.binary("addi", row, self._int64_constant(8)))
                self._interval_lists[pointer_number, kind] = self._load(row), last
        return self._interval_lists[pointer_number, kind]

    def _int64_constant(self, count: int) -> IRValue:
        return self._code.constant(count, _INT64)

    def _load(self, address: IRValue) -> IRValue:
        return self._bounds_tracker.load_int64(address)


AddressIntervals = Sequence[tuple[int, int]]


def build_rule_table(
    intervals_by_pointer: Sequence[tuple[Sequence[AddressIntervals] | None, ...]],
    table_address: int,
) -> Any:
    """Of each pointer, for reads and writes, each program's intervals (None: anything goes), as a
    table that is to lie at `start`."""
    words = [0] * (2 * len(intervals_by_pointer))
    anything = _append_intervals(words, [[(0, _MAX_ADDRESS)]], table_address, 0)
    for number, both in enumerate(intervals_by_pointer):
        for way, programs in enumerate(both):
            at = (
                anything
                if programs is None
                else _append_intervals(words, programs, table_address, 16)
            )
            words[2 * number + way] = at
    return np.array(words, dtype=np.int64)


def _append_intervals(
    words: list[int], programs: Sequence[AddressIntervals], table_address: int, program_stride: int
) -> int:
    at = len(words)
    words.append(program_stride)
    words += [0] * (2 * len(programs))
    for place, intervals in enumerate(programs):
        first = table_address + 8 * len(words)
        listed = [*intervals] or [(0, 0)]
        words += [side for interval in listed for side in interval]
        row = at + 1 + 2 * place
        words[row : row + 2] = first, first + 16 * (len(listed) - 1)
    return table_address + 8 * at
