"""Races: two programs of one launch that access one element, by the tables of `shadow_memory`.

A store exchanges its program's entry and the value that it wrote, a load its entry as a reader;
each compares the entry that it takes out. Loads are checked only where the kernel may write what
they read. Invariant: a report is true whatever the order of the programs, since nothing orders
them. Example: programs 1 and 2 store 7 and 8 to one element; the second to arrive finds the other
one's entry and another value: a write-write race. As on a CPU, two stores of the same value are no
race, and a store that changes nothing races with no reader. A kernel whose programs synchronize
(`flow.has_program_synchronization`) is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.sanitizer.gpu.accesses import get_verb
from harness.sanitizer.gpu.graph_builder import ULT, GraphBuilder
from harness.sanitizer.gpu.pointer_bounds import PointerBoundsTracker
from harness.sanitizer.gpu.program_grid import ProgramGrid
from harness.sanitizer.gpu.report_emission import ReportEmitter, reduce_to_nonzero_lane
from harness.sanitizer.gpu.shadow_entries import (
    ATOMIC_FLAG,
    CHANGED_FLAG,
    FLAG_BITS,
    HASH_MULTIPLIER,
    LAUNCH_SHIFT,
    PROGRAM_BITS,
    SLOTS_PER_TABLE,
    TAG_SHIFT,
    ShadowTable,
)
from harness.sanitizer.ir.access_graph import find_mask, get_element_bytes
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph, ValueType
from harness.sanitizer.ir.operations import ACCESS_OPERATIONS
from harness.sanitizer.violations.kinds import RACES, ViolationKind, to_word_bit

_INT64 = ValueType("i64")


class RaceChecks:
    def __init__(
        self,
        graph: KernelGraph,
        shadow_values: tuple[IRValue, IRValue],
        overlapping_pointers: Iterable[tuple[int, int]],
        grid: ProgramGrid,
        code: GraphBuilder,
        emitter: ReportEmitter,
        bounds_tracker: PointerBoundsTracker,
    ) -> None:
        """`shadow_values`: the address of the launch's number, and that of the tables;
        `overlapping_pointers`: pairs of pointers, by number, that share memory."""
        self._code, self._emitter = code, emitter
        self._bounds_tracker, self._grid = bounds_tracker, grid
        self._overlapping_pointers = {frozenset(pair) for pair in overlapping_pointers}
        self._accesses = [each for each in graph.walk() if each.name in ACCESS_OPERATIONS]
        self._launch_number_address, self._shadow_tables = shadow_values
        self._entry_values: dict[str, IRValue] = {}

    def add_check(self, operation: IROperation) -> None:
        """Emit the check of an access, in front of it."""
        verb = get_verb(operation)
        aliases = [access for access in self._accesses if self._may_alias(operation, access)]
        verbs = {get_verb(access) for access in aliases}
        if verb == "read" and verbs == {"read"}:
            return
        code, pointer, mask = self._code, operation.operands[0], find_mask(operation)
        address = code.get_address(pointer)
        smallest = min(get_element_bytes(access.operands[0]) for access in aliases)
        pieces = range(0, get_element_bytes(pointer), smallest)
        checks = self._check_pieces(
            operation, verb, address, mask, smallest, pieces, "read" in verbs
        )
        word, other = next(checks)
        for next_word, next_other in checks:
            is_set = code.is_nonzero(word)
            word = code.select(is_set, word, next_word)
            other = code.select(is_set, other, next_other)
        word, address, other = reduce_to_nonzero_lane(code, (word, address, other))
        site = self._bounds_tracker.make_site(operation)
        self._emitter.report(site, word, address, (other, self._grid.packed_shape))

    def _may_alias(self, access: IROperation, other: IROperation) -> bool:
        numbers = [
            self._bounds_tracker.get_pointer_number(each.operands[0]) for each in (access, other)
        ]
        return (
            None in numbers
            or numbers[0] == numbers[1]
            or frozenset(numbers) in self._overlapping_pointers
        )

    # Checks by the tables

    def _check_pieces(
        self,
        operation: IROperation,
        verb: str,
        address: IRValue,
        mask: IRValue | None,
        piece_bytes: int,
        pieces: range,
        may_be_read: bool,
    ) -> Iterator[tuple[IRValue, IRValue]]:
        """Check each piece of an element; yield a report's word and the other program's entry.

        `may_be_read`: whether some access of this kernel may read what this one writes.
        """
        code, kind = self._code, address.type
        stored = changes = None
        if verb == "write":
            stored = self._to_int64(operation.operands[1])
            if may_be_read:
                before = self._load_old_value(operation, mask)
                changes = code.binary("xori", stored, before)
        for piece in pieces:
            place = address
            if piece:
                place = code.binary("addi", address, code.constant(piece, kind))
            high = code.binary(
                "shrui", place, code.constant(SLOTS_PER_TABLE.bit_length() - 1, kind)
            )
            mixed = code.binary("muli", high, code.constant(HASH_MULTIPLIER, kind))
            slot = code.binary("addi", place, mixed)
            slot = code.binary("andi", slot, code.constant(SLOTS_PER_TABLE - 1, kind))
            slot = code.binary("shli", slot, code.constant(3, kind))
            tag = code.binary("shli", high, code.constant(TAG_SHIFT, kind))
            entry = code.binary("ori", tag, code.splat(self._get_program_stamp(), kind.shape))
            if verb == "read":
                yield self._check_read(slot, entry, mask)
            elif verb == "update":
                yield self._check_update(slot, entry, mask)
            else:
                assert stored is not None
                bits = [
                    self._extract_piece(value, piece, piece_bytes)
                    for value in (stored, changes)
                    if value
                ]
                yield self._check_store(slot, tag, entry, mask, *bits)

    def _check_read(
        self, slot: IRValue, entry: IRValue, mask: IRValue | None
    ) -> tuple[IRValue, IRValue]:
        code = self._code
        before = self._exchange_entry(ShadowTable.READERS, slot, entry, mask)
        second = code.apply_mask(self._is_other_program(before, entry), mask)
        self._exchange_entry(ShadowTable.EARLIER_READERS, slot, before, second)
        writer = self._load_entry(ShadowTable.WRITERS, slot, mask)
        changed = self._has_flag(writer, CHANGED_FLAG)
        wrong = code.binary("andi", self._is_other_program(writer, entry), changed)
        return self._make_fault_word(RACES["write", "read"], wrong, mask), writer

    def _check_update(
        self, slot: IRValue, entry: IRValue, mask: IRValue | None
    ) -> tuple[IRValue, IRValue]:
        code = self._code
        entry = code.binary("ori", entry, code.constant(ATOMIC_FLAG, entry.type))
        before = self._exchange_entry(ShadowTable.WRITERS, slot, entry, mask)
        store = code.negate(self._has_flag(before, ATOMIC_FLAG))
        wrong = code.binary("andi", self._is_other_program(before, entry), store)
        return self._make_fault_word(RACES["write", "update"], wrong, mask), before

    def _check_store(
        self,
        slot: IRValue,
        tag: IRValue,
        entry: IRValue,
        mask: IRValue | None,
        stored: IRValue,
        changes: IRValue | None = None,
    ) -> tuple[IRValue, IRValue]:
        code, kind = self._code, entry.type
        changed = None
        if changes is not None:
            changed = code.is_nonzero(changes)
            flag = code.number_where(changed, CHANGED_FLAG, "i64")
            entry = code.pass_through_row(code.binary("ori", entry, flag))
        before = self._exchange_entry(ShadowTable.WRITERS, slot, entry, mask)
        number = code.binary("muli", stored, code.constant(HASH_MULTIPLIER, kind))
        number = code.binary("shrui", number, code.constant(64 - LAUNCH_SHIFT, kind))
        value = code.binary("ori", tag, code.splat(self._get_launch_stamp(), kind.shape))
        value = code.pass_through_row(code.binary("ori", value, number))
        other = code.binary(
            "xori", self._exchange_entry(ShadowTable.VALUES, slot, value, mask), value
        )
        differs = code.apply_mask(self._is_in_program_bits(other, 1), mask)
        # A program that came between our two exchanges has replaced our entry.
        after = self._load_entry(ShadowTable.WRITERS, slot, differs)
        earlier, atomic = self._is_other_program(before, entry), self._has_flag(before, ATOMIC_FLAG)
        later = code.negate(self._has_flag(after, ATOMIC_FLAG))
        later = code.binary("andi", later, self._is_other_program(after, entry))
        either = code.binary("ori", code.binary("andi", earlier, code.negate(atomic)), later)
        word = self._make_fault_word(
            RACES["write", "write"], code.binary("andi", either, differs), mask
        )
        beside = self._make_fault_word(
            RACES["update", "write"], code.binary("andi", earlier, atomic), mask
        )
        word = code.binary("ori", word, beside)
        before = code.select(earlier, before, after)
        if changed is None:
            return word, before
        for table in (ShadowTable.READERS, ShadowTable.EARLIER_READERS):
            reader = self._load_entry(table, slot, mask)
            wrong = code.binary("andi", self._is_other_program(reader, entry), changed)
            more = self._make_fault_word(RACES["read", "write"], wrong, mask)
            known = code.is_nonzero(word)
            word, before = code.select(known, word, more), code.select(known, before, reader)
        return word, before

    # Entries

    def _get_launch_stamp(self) -> IRValue:
        """Return the launch's number, in its bits of an entry."""
        code = self._code
        if "launch" not in self._entry_values:
            with code.insert_into(self._bounds_tracker.entry_operations):
                number = self._bounds_tracker.load_int64(self._launch_number_address)
                self._entry_values["launch"] = code.binary(
                    "shli", number, code.constant(LAUNCH_SHIFT, _INT64)
                )
        return self._entry_values["launch"]

    def _get_program_stamp(self) -> IRValue:
        """Return the launch's number and the program's, in their bits of an entry."""
        code = self._code
        if "stamp" not in self._entry_values:
            launch, number = self._get_launch_stamp(), self._grid.program_number
            with code.insert_into(self._bounds_tracker.entry_operations):
                own = code.binary("andi", number, code.constant((1 << PROGRAM_BITS) - 1, _INT64))
                own = code.binary("shli", own, code.constant(FLAG_BITS, _INT64))
                self._entry_values["stamp"] = code.binary("ori", launch, own)
        return self._entry_values["stamp"]

    def _is_other_program(self, entry: IRValue, own_entry: IRValue) -> IRValue:
        """Return whether an entry is of the same address and launch, and of another program."""
        return self._is_in_program_bits(self._code.binary("xori", entry, own_entry), 1 << FLAG_BITS)

    def _is_in_program_bits(self, number: IRValue, first: int) -> IRValue:
        """Return whether a number is at least `first` and has no bits above the program's."""
        code, kind = self._code, number.type
        far = code.binary("subi", number, code.constant(first, kind))
        return code.compare(ULT, far, code.constant((1 << LAUNCH_SHIFT) - first, kind))

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

    def _load_entry(self, table: ShadowTable, slot: IRValue, mask: IRValue | None) -> IRValue:
        return self._bounds_tracker.load_int64(
            self._get_slot_address(table, slot), mask, volatile=True
        )

    def _exchange_entry(
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

    # Numbers

    def _load_old_value(self, operation: IROperation, mask: IRValue | None) -> IRValue:
        """Emit a load of the value that a store overwrites."""
        pointer, value = operation.operands[:2]
        return self._to_int64(self._bounds_tracker.load(pointer, value.type, mask, volatile=True))

    def _to_int64(self, value: IRValue) -> IRValue:
        bits = self._code.to_bits(value)
        return bits if bits.type.bits == 64 else self._code.extend(bits, "i64", signed=False)

    def _extract_piece(self, bits: IRValue, first: int, size: int) -> IRValue:
        code, kind = self._code, bits.type
        if first:
            bits = code.binary("shrui", bits, code.constant(8 * first, kind))
        if size == 8:
            return bits
        return code.binary("andi", bits, code.constant((1 << 8 * size) - 1, kind))

    def _make_fault_word(
        self, kind: ViolationKind, is_fault: IRValue, mask: IRValue | None
    ) -> IRValue:
        return self._code.number_where(self._code.apply_mask(is_fault, mask), to_word_bit(kind))

    def _has_flag(self, entry: IRValue, flag: int) -> IRValue:
        code = self._code
        return code.is_nonzero(code.binary("andi", entry, code.constant(flag, entry.type)))
