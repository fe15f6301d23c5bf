"""Races: who else touches an element in this launch, asked of the tables in `shadows`.

A store leaves its program's number and what it wrote, a load that it read; each takes out what was
there before. Loads are watched only where this kernel may write what they read. What is found is
true in whatever order programs ran: two of them touched one address and nothing stood between.
Values decide as on a CPU: two stores of the same are no race, and a store that changes nothing is
in no reader's way. Where programs talk to each other (`flow.talk`) nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.compiled.accesses import ACCESSES, masked_by, size_of
from harness.compiled.building import NE, ULT, Builder
from harness.compiled.grid import Grid
from harness.compiled.reaches import Reaches
from harness.compiled.shadows import (
    ATOMIC,
    CHANGED,
    FLAGS,
    LAUNCH_SHIFT,
    PROGRAM_BITS,
    SLOTS,
    TAG_SHIFT,
    Table,
)
from harness.compiled.telling import Teller, Told, one_of
from harness.kernels.graph import Graph, Kind, Operation, Value
from harness.native.lanes import Site
from harness.native.layout import Fault

# In a report's word: how two programs touched one element.
FAULTS = {
    1 << 24: Fault.STORES,
    1 << 25: Fault.ATOMIC_BESIDE_STORE,
    1 << 26: Fault.READ_AFTER_WRITE,
    1 << 27: Fault.WRITE_AFTER_READ,
}
_BITS = {fault: bit for bit, fault in FAULTS.items()}
_WIDE = Kind("i64")
_SPREADING = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, and its bits are anyhow


class Races:
    def __init__(
        self,
        graph: Graph,
        heads: tuple[Value, Value],
        beside: Iterable[tuple[int, int]],
        grid: Grid,
        code: Builder,
        teller: Teller,
        reaches: Reaches,
        places: dict[int, int],
        sites: list[Site],
    ) -> None:
        """`heads`: where the launch's number lies, and the tables; `places`: by parameter, the
        number of a pointer; `beside`: pairs of such numbers that reach into the same memory."""
        self._code, self._teller, self._reaches, self._grid = code, teller, reaches, grid
        self._places, self._sites = places, sites
        self._beside = {frozenset(pair) for pair in beside}
        self._accesses = [one for one in graph.operations() if one.name in ACCESSES]
        self._turn, self._tables = heads
        self._known: dict[str, Value] = {}

    def watch(self, operation: Operation) -> None:
        """In front of an access, as it is to be made."""
        verb, _ = ACCESSES[operation.name]
        both = [one for one in self._accesses if self._touches(operation, one)]
        verbs = {ACCESSES[one.name][0] for one in both}
        if verb == "read" and verbs == {"read"}:
            return
        code, pointer, mask = self._code, operation.operands[0], masked_by(operation)
        address = code.emit("tt.ptr_to_int", (pointer,), pointer.kind.of("i64"))
        least = min(map(size_of, both))
        pieces = range(0, size_of(operation), least)
        found = self._found(operation, verb, address, mask, least, pieces, "read" in verbs)
        word, other = next(found)
        for more, its in found:
            known = self._holds(word)
            word, other = code.chosen(known, word, more), code.chosen(known, other, its)
        word, address, other = one_of(code, (word, address, other))
        own = self._number(operation)
        self._sites.append(Site(verb, pointer.kind.pointee, operation.source, own))
        site, besides = len(self._sites) - 1, (other, self._grid.packed)
        self._teller.tell(Told(site, operation.source, word, address, besides))

    # Whose memory

    def _number(self, operation: Operation) -> int | None:
        """Of the pointer that it goes through; None where it is of no one argument."""
        origin = self._reaches.origins.get(operation.operands[0])
        return None if origin is None else self._places[origin]

    def _touches(self, one: Operation, other: Operation) -> bool:
        numbers = self._number(one), self._number(other)
        return None in numbers or len({*numbers}) == 1 or frozenset(numbers) in self._beside

    # What is asked of the tables

    def _found(
        self,
        operation: Operation,
        verb: str,
        address: Value,
        mask: Value | None,
        least: int,
        pieces: range,
        read: bool,
    ) -> Iterator[tuple[Value, Value]]:
        """Of each piece of an element, a report's word and who the other one was.

        `read`: whether some access of this kernel may read what this one writes.
        """
        code, kind = self._code, address.kind
        stored = changes = None
        if verb == "write":
            stored = self._wide(operation.operands[1])
            if read:
                held = self._held(operation, mask)
                changes = code.binary("xori", stored, held)
        for piece in pieces:
            place = address
            if piece:
                place = code.binary("addi", address, code.constant(piece, kind))
            high = code.binary("shrui", place, code.constant(SLOTS.bit_length() - 1, kind))
            mixed = code.binary("muli", high, code.constant(_SPREADING, kind))
            slot = code.binary("addi", place, mixed)
            slot = code.binary("andi", slot, code.constant(SLOTS - 1, kind))
            slot = code.binary("shli", slot, code.constant(3, kind))
            tag = code.binary("shli", high, code.constant(TAG_SHIFT, kind))
            mine = code.binary("ori", tag, code.splat(self._stamp(), kind.shape))
            if verb == "read":
                yield self._read(slot, mine, mask)
            elif verb == "update":
                yield self._updated(slot, mine, mask)
            else:
                assert stored is not None
                of = [self._piece(one, piece, least) for one in (stored, changes) if one]
                yield self._stored(slot, tag, mine, mask, *of)

    def _read(self, slot: Value, mine: Value, mask: Value | None) -> tuple[Value, Value]:
        code = self._code
        before = self._exchanged(Table.READERS, slot, mine, mask)
        second = self._and(self._by_another(before, mine), mask)
        self._exchanged(Table.EARLIER, slot, before, second)
        writer = self._looked_up(Table.WRITERS, slot, mask)
        changed = self._has(writer, CHANGED)
        wrong = code.binary("andi", self._by_another(writer, mine), changed)
        return self._word(Fault.READ_AFTER_WRITE, wrong, mask), writer

    def _updated(self, slot: Value, mine: Value, mask: Value | None) -> tuple[Value, Value]:
        code = self._code
        mine = code.binary("ori", mine, code.constant(ATOMIC, mine.kind))
        before = self._exchanged(Table.WRITERS, slot, mine, mask)
        store = self._not(self._has(before, ATOMIC))
        wrong = code.binary("andi", self._by_another(before, mine), store)
        return self._word(Fault.ATOMIC_BESIDE_STORE, wrong, mask), before

    def _stored(
        self,
        slot: Value,
        tag: Value,
        mine: Value,
        mask: Value | None,
        stored: Value,
        changes: Value | None = None,
    ) -> tuple[Value, Value]:
        code, kind = self._code, mine.kind
        changed = None
        if changes is not None:
            changed = self._holds(changes)
            flag = code.chosen(changed, code.constant(CHANGED, kind), code.constant(0, kind))
            mine = code.binary("ori", mine, flag)
        before = self._exchanged(Table.WRITERS, slot, mine, mask)
        number = code.binary("muli", stored, code.constant(_SPREADING, kind))
        number = code.binary("shrui", number, code.constant(64 - LAUNCH_SHIFT, kind))
        value = code.binary("ori", tag, code.splat(self._launch(), kind.shape))
        value = code.binary("ori", value, number)
        other = code.binary("xori", self._exchanged(Table.VALUES, slot, value, mask), value)
        differs = self._and(self._within(other, 1), mask)
        # Who came between our two entries stands where ours was.
        after = self._looked_up(Table.WRITERS, slot, differs)
        earlier, atomic = self._by_another(before, mine), self._has(before, ATOMIC)
        later = self._not(self._has(after, ATOMIC))
        later = code.binary("andi", later, self._by_another(after, mine))
        either = code.binary("ori", code.binary("andi", earlier, self._not(atomic)), later)
        word = self._word(Fault.STORES, code.binary("andi", either, differs), mask)
        beside = self._word(Fault.ATOMIC_BESIDE_STORE, code.binary("andi", earlier, atomic), mask)
        word = code.binary("ori", word, beside)
        before = code.chosen(earlier, before, after)
        if changed is None:
            return word, before
        for table in (Table.READERS, Table.EARLIER):
            reader = self._looked_up(table, slot, mask)
            wrong = code.binary("andi", self._by_another(reader, mine), changed)
            more = self._word(Fault.WRITE_AFTER_READ, wrong, mask)
            known = self._holds(word)
            word, before = code.chosen(known, word, more), code.chosen(known, before, reader)
        return word, before

    # Entries

    def _launch(self) -> Value:
        """The launch's number, where an entry has it."""
        code = self._code
        if "launch" not in self._known:
            with code.at(self._reaches.entry):
                number = self._reaches.loaded(self._turn)
                self._known["launch"] = code.binary(
                    "shli", number, code.constant(LAUNCH_SHIFT, _WIDE)
                )
        return self._known["launch"]

    def _stamp(self) -> Value:
        """The launch's number and the program's."""
        code = self._code
        if "stamp" not in self._known:
            launch, number = self._launch(), self._grid.number
            with code.at(self._reaches.entry):
                own = code.binary("andi", number, code.constant((1 << PROGRAM_BITS) - 1, _WIDE))
                own = code.binary("shli", own, code.constant(FLAGS, _WIDE))
                self._known["stamp"] = code.binary("ori", launch, own)
        return self._known["stamp"]

    def _by_another(self, entry: Value, mine: Value) -> Value:
        """Of this address and launch, and of another program."""
        return self._within(self._code.binary("xori", entry, mine), 1 << FLAGS)

    def _within(self, number: Value, first: int) -> Value:
        """Whether it is that or more, and nothing but a program's bits."""
        code, kind = self._code, number.kind
        far = code.binary("subi", number, code.constant(first, kind))
        return code.compare(ULT, far, code.constant((1 << LAUNCH_SHIFT) - first, kind))

    def _place(self, table: Table, slot: Value) -> Value:
        code = self._code
        start = self._known.get(table.name)
        if start is None:
            with code.at(self._reaches.entry):
                far = code.constant(8 * SLOTS * table, _WIDE)
                start = self._known[table.name] = code.binary("addi", self._tables, far)
        return code.binary("addi", code.splat(start, slot.kind.shape), slot)

    def _looked_up(self, table: Table, slot: Value, mask: Value | None) -> Value:
        return self._reaches.loaded(self._place(table, slot), mask, anew=True)

    def _exchanged(self, table: Table, slot: Value, entry: Value, mask: Value | None) -> Value:
        code = self._code
        place = self._place(table, slot)
        pointer = code.emit("tt.int_to_ptr", (place,), place.kind.of("ptr<i64>"))
        return code.emit(
            "tt.atomic_rmw",
            (pointer, entry, *(() if mask is None else (mask,))),
            entry.kind,
            atomic_rmw_op="10 : i32",  # exchange
            sem="1 : i32",  # in no order with other memory
            scope="1 : i32",
        )

    # Numbers

    def _held(self, operation: Operation, mask: Value | None) -> Value:
        """What a store finds."""
        pointer, value = operation.operands[:2]
        return self._wide(self._reaches.read(pointer, value.kind, mask, anew=True))

    def _wide(self, value: Value) -> Value:
        bits = self._code.bits(value)
        return bits if bits.kind.bits == 64 else self._code.extended(bits, "i64", signed=False)

    def _piece(self, bits: Value, first: int, size: int) -> Value:
        code, kind = self._code, bits.kind
        if first:
            bits = code.binary("shrui", bits, code.constant(8 * first, kind))
        if size == 8:
            return bits
        return code.binary("andi", bits, code.constant((1 << 8 * size) - 1, kind))

    def _word(self, fault: Fault, wrong: Value, mask: Value | None) -> Value:
        code, wrong = self._code, self._and(wrong, mask)
        kind = wrong.kind.of("i32")
        return code.chosen(wrong, code.constant(_BITS[fault], kind), code.constant(0, kind))

    def _and(self, wrong: Value, mask: Value | None) -> Value:
        return wrong if mask is None else self._code.binary("andi", wrong, mask)

    def _not(self, wrong: Value) -> Value:
        return self._code.binary("xori", wrong, self._code.constant(1, wrong.kind))

    def _has(self, entry: Value, flag: int) -> Value:
        code = self._code
        return self._holds(code.binary("andi", entry, code.constant(flag, entry.kind)))

    def _holds(self, number: Value) -> Value:
        return self._code.compare(NE, number, self._code.constant(0, number.kind))
