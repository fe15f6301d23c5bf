"""Access rules in a kernel: the intervals of addresses that each program may read or write.

A launch with access rules passes a table of int64. Invariant: intervals of one program are sorted
and disjoint, so a binary search, lane by lane, finds the only one that an address can lie in.

Layout: for pointer p, words 2p and 2p + 1 hold the addresses of its read and its write lists. There
stands the distance in bytes between two programs' rows (0: all programs share one row), then the
rows: the addresses of the program's first and last interval, each a start and an end. Example: if
program 1 of 2 may write bytes 4096 to 4104 of pointer 0, its row points at the words 4096, 4104.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.sanitizer.gpu.graph_builder import SLE, SLT, GraphBuilder
from harness.sanitizer.gpu.pointer_bounds import PointerBoundsTracker
from harness.sanitizer.gpu.program_grid import ProgramGrid
from harness.sanitizer.ir.graph import IRBlock, IROperation, IRRegion, IRValue, ValueType
from harness.sanitizer.violations.kinds import FORBIDDEN

MAX_INTERVALS = 1 << 14  # intervals of a list
_INT64 = ValueType("i64")
_MAX_ADDRESS = 1 << 62


class AccessRuleTable:
    def __init__(
        self,
        code: GraphBuilder,
        table: IRValue,
        bounds_tracker: PointerBoundsTracker,
        grid: ProgramGrid,
    ) -> None:
        self._code, self._table = code, table
        self._bounds_tracker, self._grid = bounds_tracker, grid
        self._interval_lists: dict[tuple[int, str], tuple[IRValue, IRValue]] = {}

    def is_excluded(self, pointer_number: int, verb: str, address: IRValue, size: int) -> IRValue:
        """Emit whether the rules of a pointer exclude an access for this verb."""
        code, shape = self._code, address.type.shape
        first, last = (
            code.splat(end, shape) for end in self._load_interval_list(pointer_number, verb)
        )
        place = self._emit_interval_search(first, last, address)
        start = self._load(place)
        end = self._load(code.binary("addi", place, code.constant(8, place.type)))
        ends = code.binary("addi", address, code.constant(size, address.type))
        return code.binary("ori", code.compare(SLT, address, start), code.compare(SLT, end, ends))

    def _emit_interval_search(self, first: IRValue, last: IRValue, address: IRValue) -> IRValue:
        """Emit a search for the last interval that begins at or before the address, or the first.

        It is a loop in the kernel: unrolled, it would take Triton seconds to compile.
        """
        code, side = self._code, ValueType("i32")
        turns = [code.constant(number, side) for number in (0, MAX_INTERVALS.bit_length() - 1, 1)]
        turn, place, step = (code.new_value(kind) for kind in (side, first.type, _INT64))
        with code.insert_into([]) as body:
            probe = code.binary("addi", place, code.splat(step, place.type.shape))
            probe = code.binary("minsi", probe, last)
            before = code.compare(SLE, self._load(probe), address)
            nearer = code.select(before, probe, place)
            half = code.binary("shrsi", step, self._int64_constant(1))
            code.end_block("scf.yield", (nearer, half))
        region = IRRegion((IRBlock("bb0", (turn, place, step), tuple(body)),))
        found = code.new_value(first.type), code.new_value(_INT64)
        operands = (*turns, first, self._int64_constant(8 * MAX_INTERVALS))
        code.operations.append(IROperation("scf.for", operands, found, {}, code.source, (region,)))
        return found[0]

    def _load_interval_list(self, pointer_number: int, verb: str) -> tuple[IRValue, IRValue]:
        """Load the addresses of this program's first and last interval."""
        code = self._code
        if (pointer_number, verb) not in self._interval_lists:
            with code.insert_into(self._bounds_tracker.entry_operations):
                at = code.constant(16 * pointer_number + 8 * list(FORBIDDEN).index(verb), _INT64)
                lists = self._load(code.binary("addi", self._table, at))
                far = code.binary("muli", self._load(lists), self._grid.program_number)
                row = code.binary("addi", code.binary("addi", lists, far), self._int64_constant(8))
                last = self._load(code.binary("addi", row, self._int64_constant(8)))
                self._interval_lists[pointer_number, verb] = self._load(row), last
        return self._interval_lists[pointer_number, verb]

    def _int64_constant(self, count: int) -> IRValue:
        return self._code.constant(count, _INT64)

    def _load(self, address: IRValue) -> IRValue:
        return self._bounds_tracker.load_int64(address)


AddressIntervals = Sequence[tuple[int, int]]


def build_rule_table(
    intervals_by_pointer: Sequence[tuple[Sequence[AddressIntervals] | None, ...]],
    table_address: int,
) -> Any:
    """Build the table, for an address, of each pointer's readable and writable intervals.

    None in place of a list of programs allows every access.
    """
    words = [0] * (2 * len(intervals_by_pointer))
    everything = _append_intervals(words, [[(0, _MAX_ADDRESS)]], table_address, 0)
    for number, kinds in enumerate(intervals_by_pointer):
        for kind, programs in enumerate(kinds):
            at = (
                everything
                if programs is None
                else _append_intervals(words, programs, table_address, 16)
            )
            words[2 * number + kind] = at
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
