"""The entries of programs in Triton's IR: who may access the same memory, and one report for all.

Loads have entries only where the kernel may write what they read. A kernel whose programs
synchronize (`flow.has_program_synchronization`) is not checked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator

from harness.sanitizer.gpu.accesses import get_verb
from harness.sanitizer.gpu.card_entries import CardEntries, CardGranule
from harness.sanitizer.gpu.graph_builder import ULT, GraphBuilder
from harness.sanitizer.gpu.pointer_bounds import PointerBoundsTracker
from harness.sanitizer.gpu.program_grid import ProgramGrid
from harness.sanitizer.gpu.report_emission import ReportEmitter, reduce_to_nonzero_lane
from harness.sanitizer.gpu.shadow_entries import (
    FLAG_BITS,
    LAUNCH_SHIFT,
    PROGRAM_BITS,
    SLOTS_PER_TABLE,
    ShadowTable,
)
from harness.sanitizer.ir.access_graph import find_mask, get_element_bytes
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph, ValueType
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.ir.operations import ACCESS_OPERATIONS
from harness.sanitizer.violations.kinds import ViolationKind, to_word_bit

_INT64 = ValueType("i64")
_OPERATIONS = {
    "add": "addi", "sub": "subi", "mul": "muli", "shl": "shli", "shr": "shrui",
    "and": "andi", "or": "ori", "xor": "xori",
}  # fmt: skip


class RaceTables:
    """What all race checks of a kernel share: entries, and who may access the same memory."""

    def __init__(
        self,
        graph: KernelGraph,
        shadow_values: tuple[IRValue, IRValue],
        overlapping_pointers: Iterable[tuple[int, int]],
        grid: ProgramGrid,
        code: GraphBuilder,
        bounds_tracker: PointerBoundsTracker,
    ) -> None:
        """`shadow_values`: the address of the launch's number, and that of the tables;
        `overlapping_pointers`: pairs of pointers, by number, that share memory."""
        self._code, self._bounds_tracker, self.grid = code, bounds_tracker, grid
        self._overlapping_pointers = {frozenset(pair) for pair in overlapping_pointers}
        self._accesses = [each for each in graph.walk() if each.name in ACCESS_OPERATIONS]
        self._launch_number_address, self._shadow_tables = shadow_values
        self._entry_values: dict[str, IRValue] = {}

    def list_aliases(self, access: IROperation) -> list[IROperation]:
        """List the accesses of the kernel that may go to the same memory."""
        return [other for other in self._accesses if self._may_alias(access, other)]

    def _may_alias(self, access: IROperation, other: IROperation) -> bool:
        numbers = [
            self._bounds_tracker.get_pointer_number(each.operands[0]) for each in (access, other)
        ]
        return (
            None in numbers
            or numbers[0] == numbers[1]
            or frozenset(numbers) in self._overlapping_pointers
        )

    def get_launch_stamp(self) -> IRValue:
        """Return the launch's number, in its bits of an entry."""
        code = self._code
        if "launch" not in self._entry_values:
            with code.insert_into(self._bounds_tracker.entry_operations):
                number = self._bounds_tracker.load_int64(self._launch_number_address)
                self._entry_values["launch"] = code.binary(
                    "shli", number, code.constant(LAUNCH_SHIFT, _INT64)
                )
        return self._entry_values["launch"]

    def get_program_stamp(self) -> IRValue:
        """Return the launch's number and the program's, in their bits of an entry."""
        code = self._code
        if "stamp" not in self._entry_values:
            launch, number = self.get_launch_stamp(), self.grid.program_number
            with code.insert_into(self._bounds_tracker.entry_operations):
                own = code.binary("andi", number, code.constant((1 << PROGRAM_BITS) - 1, _INT64))
                own = code.binary("shli", own, code.constant(FLAG_BITS, _INT64))
                self._entry_values["stamp"] = code.binary("ori", launch, own)
        return self._entry_values["stamp"]

    def _get_slot_address(self, table: ShadowTable, slot: IRValue) -> IRValue:
        code = self._code
        start = self._entry_values.get(table.name)
        if start is None:
            with code.insert_into(self._bounds_tracker.entry_operations):
                far = code.constant(8 * SLOTS_PER_TABLE * table, _INT64)
                start = self._entry_values[table.name] = code.binary(
                    "addi", self._shadow_tables, far
                )
        return code.binary("addi", code.splat(start, slot.type.shape), slot)

    def load_entry(self, table: ShadowTable, slot: IRValue, mask: IRValue | None) -> IRValue:
        return self._bounds_tracker.load_int64(
            self._get_slot_address(table, slot), mask, volatile=True
        )

    def exchange_entry(
        self, table: ShadowTable, slot: IRValue, entry: IRValue, mask: IRValue | None
    ) -> IRValue:
        code = self._code
        pointer = code.point_to_int64(self._get_slot_address(table, slot))
        return code.emit(
            "tt.atomic_rmw",
            (pointer, entry, *(() if mask is None else (mask,))),
            entry.type,
            atomic_rmw_op="10 : i32",  # exchange
            sem="1 : i32",  # relaxed
            scope="1 : i32",
        )

    def load_old_value(self, operation: IROperation, mask: IRValue | None) -> IRValue:
        """Emit a load of the value that a store overwrites."""
        pointer, value = operation.operands[:2]
        return self._bounds_tracker.load(pointer, value.type, mask, volatile=True)


class TritonRaceEntries(CardEntries[IRValue]):
    """The entries of one access, and the report of its races: one of all lanes and granules."""

    operation: IROperation

    def __init__(self, code: GraphBuilder, emitter: ReportEmitter, tables: RaceTables | None):
        self.code, self.emitter, self._tables = code, emitter, tables
        self._race: tuple[IRValue, IRValue] | None = None  # a report's word, and the other's entry

    @abstractmethod
    def make_site(self) -> OperationSite: ...

    def granules(self) -> Iterator[CardGranule[IRValue]]:
        tables = self._tables
        if tables is None:
            return
        aliases = tables.list_aliases(self.operation)
        verbs = {get_verb(access) for access in aliases}
        if self.verb == "read" and verbs == {"read"}:
            return
        code, pointer = self.code, self.operation.operands[0]
        self._used_tables, self._mask = tables, find_mask(self.operation)
        address = code.get_address(pointer)
        values: list[IRValue] = []
        if self.verb == "write":
            values.append(self._to_int64(self.operation.operands[1]))
        if self.verb == "write" and "read" in verbs:
            before = self._to_int64(tables.load_old_value(self.operation, self._mask))
            values.append(code.binary("xori", values[0], before))
        size = min(get_element_bytes(access.operands[0]) for access in aliases)
        for first in range(0, get_element_bytes(pointer), size):
            granule = self.find_granule(
                first, self.combine("add", address, first) if first else address
            )
            bits = [self._extract_piece(value, first, size) for value in values]
            granule.written = bits[0] if bits else None
            granule.changes = code.is_nonzero(bits[1]) if len(bits) > 1 else None
            yield granule
        if self._race is not None:
            word, other = self._race
            word, address, other = reduce_to_nonzero_lane(code, (word, address, other))
            operands = other, tables.grid.packed_shape
            self.emitter.report(self.make_site(), word, address, operands)

    def report_race(
        self,
        kind: ViolationKind,
        granule: CardGranule[IRValue],
        entry: IRValue,
        where: IRValue | None = None,
    ) -> None:
        """Keep the first race of each lane."""
        code, is_race = self.code, self.is_other_program(entry, granule.entry)
        if where is not None:
            is_race = code.both(is_race, where)
        word = code.number_where(code.apply_mask(is_race, self._mask), to_word_bit(kind))
        if self._race is not None:
            is_known = code.is_nonzero(self._race[0])
            word = code.select(is_known, self._race[0], word)
            entry = code.select(is_known, self._race[1], entry)
        self._race = word, entry

    # Of entries

    def combine(self, operation: str, left: IRValue, right: IRValue | int) -> IRValue:
        code = self.code
        if isinstance(right, int):
            right = code.constant(right, left.type)
        return code.binary(_OPERATIONS[operation], left, code.splat(right, left.type.shape))

    def is_below(self, number: IRValue, limit: int) -> IRValue:
        return self.code.compare(ULT, number, self.code.constant(limit, number.type))

    def is_nonzero(self, number: IRValue) -> IRValue:
        return self.code.is_nonzero(number)

    def negate(self, condition: IRValue) -> IRValue:
        return self.code.negate(condition)

    def add_flag(self, entry: IRValue, flag: int, where: IRValue) -> IRValue:
        return self.combine("or", entry, self.code.number_where(where, flag, "i64"))

    def get_stamp(self, of_program: bool) -> IRValue:
        tables = self._used_tables
        return tables.get_program_stamp() if of_program else tables.get_launch_stamp()

    def exchange(
        self,
        table: ShadowTable,
        granule: CardGranule[IRValue],
        entry: IRValue,
        where: IRValue | None = None,
    ) -> IRValue:
        code = self.code
        if entry is not granule.entry:
            entry = code.pass_through_row(entry)
        mask = self._mask if where is None else code.apply_mask(where, self._mask)
        return self._used_tables.exchange_entry(table, granule.slot, entry, mask)

    def load(
        self, table: ShadowTable, granule: CardGranule[IRValue], where: IRValue | None = None
    ) -> IRValue:
        mask = self._mask if where is None else self.code.apply_mask(where, self._mask)
        return self._used_tables.load_entry(table, granule.slot, mask)

    def _to_int64(self, value: IRValue) -> IRValue:
        bits = self.code.to_bits(value)
        return bits if bits.type.bits == 64 else self.code.extend(bits, "i64", signed=False)

    def _extract_piece(self, bits: IRValue, first: int, size: int) -> IRValue:
        if first:
            bits = self.combine("shr", bits, 8 * first)
        return bits if size == 8 else self.combine("and", bits, (1 << 8 * size) - 1)
