"""Races: who else touches an element in this launch, asked of the tables in `shadows`.

A store leaves its program's number and what it wrote, a load that it read; each takes out what was
there before. Loads are watched only where this kernel may write what they read. What is found is
true in whatever order programs ran: two of them touched one address and nothing stood between.
Values decide as on a CPU: two stores of the same are no race, and a store that changes nothing is
in no reader's way. Where programs talk to each other (`flow.talk`) nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.kernels.cpu.abi import ViolationKind
from harness.kernels.cpu.scratch_values import OperationSite
from harness.kernels.gpu.access_checks import ACCESS_OPERATIONS, get_element_bytes, get_mask
from harness.kernels.gpu.graph_builder import NE, ULT, GraphBuilder
from harness.kernels.gpu.pointer_bounds import PointerBoundsTracker
from harness.kernels.gpu.program_grid import ProgramGrid
from harness.kernels.gpu.report_emission import ReportEmitter, SiteReport, reduce_to_nonzero_lane
from harness.kernels.gpu.shadow_memory import (
    ATOMIC_FLAG,
    CHANGED_FLAG,
    FLAG_BITS,
    LAUNCH_SHIFT,
    PROGRAM_BITS,
    SLOTS_PER_TABLE,
    TAG_SHIFT,
    ShadowTable,
)
from harness.kernels.ir.graph import IROperation, IRValue, KernelGraph, ValueType

# In a report's word: how two programs touched one element.
RACE_FAULTS = {
    1 << 24: ViolationKind.WRITE_WRITE_RACE,
    1 << 25: ViolationKind.ATOMIC_STORE_RACE,
    1 << 26: ViolationKind.READ_AFTER_WRITE,
    1 << 27: ViolationKind.WRITE_AFTER_READ,
}
_FAULT_BITS = {fault: bit for bit, fault in RACE_FAULTS.items()}
_INT64 = ValueType("i64")
_HASH_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, and its bits are anyhow


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
        pointer_numbers: dict[int, int],
        sites: list[OperationSite],
    ) -> None:
        """`heads`: where the launch's number lies, and the tables; `places`: by parameter, the
        number of a pointer; `beside`: pairs of such numbers that reach into the same memory."""
        self._code, self._emitter, self._bounds_tracker, self._grid = (
            code,
            emitter,
            bounds_tracker,
            grid,
        )
        self._pointer_numbers, self._sites = pointer_numbers, sites
        self._overlapping_pointers = {frozenset(pair) for pair in overlapping_pointers}
        self._accesses = [one for one in graph.walk() if one.name in ACCESS_OPERATIONS]
        self._launch_number_address, self._shadow_tables = shadow_values
        self._entry_values: dict[str, IRValue] = {}

    def add_check(self, operation: IROperation) -> None:
        """In front of an access, as it is to be made."""
        verb, _ = ACCESS_OPERATIONS[operation.name]
        both = [one for one in self._accesses if self._may_alias(operation, one)]
        verbs = {ACCESS_OPERATIONS[one.name][0] for one in both}
        if verb == "read" and verbs == {"read"}:
            return
        code, pointer, mask = self._code, operation.operands[0], get_mask(operation)
        address = code.emit("tt.ptr_to_int", (pointer,), pointer.type.with_element("i64"))
        least = min(map(get_element_bytes, both))
        pieces = range(0, get_element_bytes(operation), least)
        found = self._check_pieces(operation, verb, address, mask, least, pieces, "read" in verbs)
        word, other = next(found)
        for more, its in found:
            known = self._is_nonzero(word)
            word, other = code.select(known, word, more), code.select(known, other, its)
        word, address, other = reduce_to_nonzero_lane(code, (word, address, other))
        own = self._get_pointer_number(operation)
        self._sites.append(OperationSite(verb, pointer.type.pointee, operation.source, own))
        site, besides = len(self._sites) - 1, (other, self._grid.packed_shape)
        self._emitter.report(SiteReport(site, operation.source, word, address, besides))

    # Whose memory

    def _get_pointer_number(self, operation: IROperation) -> int | None:
        """Of the pointer that it goes through; None where it is of no one argument."""
        origin = self._bounds_tracker.origins.get(operation.operands[0])
        return None if origin is None else self._pointer_numbers[origin]

    def _may_alias(self, one: IROperation, other: IROperation) -> bool:
        numbers = self._get_pointer_number(one), self._get_pointer_number(other)
        return (
            None in numbers
            or len({*numbers}) == 1
            or frozenset(numbers) in self._overlapping_pointers
        )

    # What is asked of the tables

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
        """Of each piece of an element, a report's word and who the other one was.

        `read`: whether some access of this kernel may read what this one writes.
        """
        code, kind = self._code, address.type
        stored = changes = None
        if verb == "write":
            stored = self._to_int64(operation.operands[1])
            if may_be_read:
                held = self._load_old_value(operation, mask)
                changes = code.binary("xori", stored, held)
        for piece in pieces:
            place = address
            if piece:
                place = code.binary("addi", address, code.constant(piece, kind))
            high = code.binary(
                "shrui", place, code.constant(SLOTS_PER_TABLE.bit_length() - 1, kind)
            )
            mixed = code.binary("muli", high, code.constant(_HASH_MULTIPLIER, kind))
            slot = code.binary("addi", place, mixed)
            slot = code.binary("andi", slot, code.constant(SLOTS_PER_TABLE - 1, kind))
            slot = code.binary("shli", slot, code.constant(3, kind))
            tag = code.binary("shli", high, code.constant(TAG_SHIFT, kind))
            mine = code.binary("ori", tag, code.splat(self._get_program_stamp(), kind.shape))
            if verb == "read":
                yield self._check_read(slot, mine, mask)
            elif verb == "update":
                yield self._check_update(slot, mine, mask)
            else:
                assert stored is not None
                of = [
                    self._extract_piece(one, piece, piece_bytes) for one in (stored, changes) if one
                ]
                yield self._check_store(slot, tag, mine, mask, *of)

    def _check_read(
        self, slot: IRValue, entry: IRValue, mask: IRValue | None
    ) -> tuple[IRValue, IRValue]:
        code = self._code
        before = self._exchange_entry(ShadowTable.READERS, slot, entry, mask)
        second = self._apply_mask(self._is_other_program(before, entry), mask)
        self._exchange_entry(ShadowTable.EARLIER_READERS, slot, before, second)
        writer = self._load_entry(ShadowTable.WRITERS, slot, mask)
        changed = self._has_flag(writer, CHANGED_FLAG)
        wrong = code.binary("andi", self._is_other_program(writer, entry), changed)
        return self._make_fault_word(ViolationKind.READ_AFTER_WRITE, wrong, mask), writer

    def _check_update(
        self, slot: IRValue, entry: IRValue, mask: IRValue | None
    ) -> tuple[IRValue, IRValue]:
        code = self._code
        entry = code.binary("ori", entry, code.constant(ATOMIC_FLAG, entry.type))
        before = self._exchange_entry(ShadowTable.WRITERS, slot, entry, mask)
        store = self._negate(self._has_flag(before, ATOMIC_FLAG))
        wrong = code.binary("andi", self._is_other_program(before, entry), store)
        return self._make_fault_word(ViolationKind.ATOMIC_STORE_RACE, wrong, mask), before

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
            changed = self._is_nonzero(changes)
            flag = code.select(changed, code.constant(CHANGED_FLAG, kind), code.constant(0, kind))
            entry = code.binary("ori", entry, flag)
        before = self._exchange_entry(ShadowTable.WRITERS, slot, entry, mask)
        number = code.binary("muli", stored, code.constant(_HASH_MULTIPLIER, kind))
        number = code.binary("shrui", number, code.constant(64 - LAUNCH_SHIFT, kind))
        value = code.binary("ori", tag, code.splat(self._get_launch_stamp(), kind.shape))
        value = code.binary("ori", value, number)
        other = code.binary(
            "xori", self._exchange_entry(ShadowTable.VALUES, slot, value, mask), value
        )
        differs = self._apply_mask(self._is_in_program_bits(other, 1), mask)
        # Who came between our two entries stands where ours was.
        after = self._load_entry(ShadowTable.WRITERS, slot, differs)
        earlier, atomic = self._is_other_program(before, entry), self._has_flag(before, ATOMIC_FLAG)
        later = self._negate(self._has_flag(after, ATOMIC_FLAG))
        later = code.binary("andi", later, self._is_other_program(after, entry))
        either = code.binary("ori", code.binary("andi", earlier, self._negate(atomic)), later)
        word = self._make_fault_word(
            ViolationKind.WRITE_WRITE_RACE, code.binary("andi", either, differs), mask
        )
        beside = self._make_fault_word(
            ViolationKind.ATOMIC_STORE_RACE, code.binary("andi", earlier, atomic), mask
        )
        word = code.binary("ori", word, beside)
        before = code.select(earlier, before, after)
        if changed is None:
            return word, before
        for table in (ShadowTable.READERS, ShadowTable.EARLIER_READERS):
            reader = self._load_entry(table, slot, mask)
            wrong = code.binary("andi", self._is_other_program(reader, entry), changed)
            more = self._make_fault_word(ViolationKind.WRITE_AFTER_READ, wrong, mask)
            known = self._is_nonzero(word)
            word, before = code.select(known, word, more), code.select(known, before, reader)
        return word, before

    # Entries

    def _get_launch_stamp(self) -> IRValue:
        """The launch's number, where an entry has it."""
        code = self._code
        if "launch" not in self._entry_values:
            with code.insert_into(self._bounds_tracker.entry_operations):
                number = self._bounds_tracker.load_int64(self._launch_number_address)
                self._entry_values["launch"] = code.binary(
                    "shli", number, code.constant(LAUNCH_SHIFT, _INT64)
                )
        return self._entry_values["launch"]

    def _get_program_stamp(self) -> IRValue:
        """The launch's number and the program's."""
        code = self._code
        if "stamp" not in self._entry_values:
            launch, number = self._get_launch_stamp(), self._grid.program_number
            with code.insert_into(self._bounds_tracker.entry_operations):
                own = code.binary("andi", number, code.constant((1 << PROGRAM_BITS) - 1, _INT64))
                own = code.binary("shli", own, code.constant(FLAG_BITS, _INT64))
                self._entry_values["stamp"] = code.binary("ori", launch, own)
        return self._entry_values["stamp"]

    def _is_other_program(self, entry: IRValue, own_entry: IRValue) -> IRValue:
        """Of this address and launch, and of another program."""
        return self._is_in_program_bits(self._code.binary("xori", entry, own_entry), 1 << FLAG_BITS)

    def _is_in_program_bits(self, number: IRValue, first: int) -> IRValue:
        """Whether it is that or more, and nothing but a program's bits."""
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
        place = self._get_slot_address(table, slot)
        pointer = code.emit("tt.int_to_ptr", (place,), place.type.with_element("ptr<i64>"))
        return code.emit(
            "tt.atomic_rmw",
            (pointer, entry, *(() if mask is None else (mask,))),
            entry.type,
            atomic_rmw_op="10 : i32",  # exchange
            sem="1 : i32",  # in no order with other memory
            scope="1 : i32",
        )

    # Numbers

    def _load_old_value(self, operation: IROperation, mask: IRValue | None) -> IRValue:
        """What a store finds."""
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
        self, fault: ViolationKind, is_fault: IRValue, mask: IRValue | None
    ) -> IRValue:
        code, is_fault = self._code, self._apply_mask(is_fault, mask)
        kind = is_fault.type.with_element("i32")
        return code.select(
            is_fault, code.constant(_FAULT_BITS[fault], kind), code.constant(0, kind)
        )

    def _apply_mask(self, condition: IRValue, mask: IRValue | None) -> IRValue:
        return condition if mask is None else self._code.binary("andi", condition, mask)

    def _negate(self, condition: IRValue) -> IRValue:
        return self._code.binary("xori", condition, self._code.constant(1, condition.type))

    def _has_flag(self, entry: IRValue, flag: int) -> IRValue:
        code = self._code
        return self._is_nonzero(code.binary("andi", entry, code.constant(flag, entry.type)))

    def _is_nonzero(self, number: IRValue) -> IRValue:
        return self._code.compare(NE, number, self._code.constant(0, number.type))
