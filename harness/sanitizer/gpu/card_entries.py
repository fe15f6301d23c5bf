"""The entries of an access in the tables of `shadow_memory`, in Triton's IR as in PTX.

A store exchanges its program's entry and the value that it wrote, a load its entry as a reader;
each gets the entry that it takes out. Invariant: a report is true whatever the order of the
programs, since nothing orders them. Example: programs 1 and 2 store 7 and 8 to one element; the
second to arrive finds the other one's entry and another value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from harness.sanitizer.checks.words import Earlier, V
from harness.sanitizer.gpu.shadow_entries import (
    ATOMIC_FLAG,
    CHANGED_FLAG,
    FLAG_BITS,
    HASH_MULTIPLIER,
    LAUNCH_SHIFT,
    SLOT_BITS,
    SLOTS_PER_TABLE,
    TAG_SHIFT,
    ShadowTable,
)


@dataclass(slots=True)
class CardGranule(Generic[V]):
    """A granule: where its entries are, this program's own, and what a store does to it."""

    first: int  # byte of the access
    slot: V  # bytes from a table's start
    tag: V
    entry: V
    written: V | None = None  # the value, or a hash of it
    changes: V | None = None  # None if nobody reads it


class CardEntries(ABC, Generic[V]):
    verb: str

    @abstractmethod
    def combine(self, operation: str, left: V, right: V | int) -> V:
        """Emit "add", "sub", "mul", "shl", "shr", "and", "or" or "xor" of 64 bits."""

    @abstractmethod
    def is_below(self, number: V, limit: int) -> V:
        """Compare without signs."""

    @abstractmethod
    def is_nonzero(self, number: V) -> V: ...

    @abstractmethod
    def negate(self, condition: V) -> V: ...

    @abstractmethod
    def add_flag(self, entry: V, flag: int, where: V) -> V: ...

    @abstractmethod
    def get_stamp(self, of_program: bool) -> V:
        """Return the launch's number in its bits of an entry, with the program's or without."""

    @abstractmethod
    def exchange(
        self, table: ShadowTable, granule: CardGranule[V], entry: V, where: V | None = None
    ) -> V: ...

    @abstractmethod
    def load(self, table: ShadowTable, granule: CardGranule[V], where: V | None = None) -> V: ...

    def find_granule(self, first: int, place: V) -> CardGranule[V]:
        high = self.combine("shr", place, SLOT_BITS)
        slot = self.combine("add", self.combine("mul", high, HASH_MULTIPLIER), place)
        slot = self.combine("shl", self.combine("and", slot, SLOTS_PER_TABLE - 1), 3)
        tag = self.combine("shl", high, TAG_SHIFT)
        entry = self.combine("or", tag, self.get_stamp(of_program=True))
        return CardGranule(first, slot, tag, entry)

    def is_other_program(self, entry: V, own: V) -> V:
        """Ask whether an entry is of the same address and launch, and of another program."""
        return self._differs_below_launch(entry, own, 1 << FLAG_BITS)

    def _differs_below_launch(self, entry: V, own: V, first: int) -> V:
        """Ask whether two entries differ by `first` at least, in the program's bits alone."""
        bits = self.combine("sub", self.combine("xor", entry, own), first)
        return self.is_below(bits, (1 << LAUNCH_SHIFT) - first)

    # What checks ask

    def changes(self, granule: CardGranule[V]) -> V | None:
        return granule.changes

    def enter(self, granule: CardGranule[V], changes: V | None = None) -> V:
        entry = granule.entry
        if self.verb == "read":
            before = self.exchange(ShadowTable.READERS, granule, entry)
            other = self.is_other_program(before, entry)
            self.exchange(ShadowTable.EARLIER_READERS, granule, before, other)
            return self.load(ShadowTable.WRITERS, granule)
        if self.verb == "update":
            entry = self.combine("or", entry, ATOMIC_FLAG)
        elif changes is not None:
            entry = self.add_flag(entry, CHANGED_FLAG, changes)
        return self.exchange(ShadowTable.WRITERS, granule, entry)

    def was(self, entry: V, what: Earlier) -> V:
        flag = CHANGED_FLAG if what is Earlier.CHANGED else ATOMIC_FLAG
        has_flag = self.is_nonzero(self.combine("and", entry, flag))
        return self.negate(has_flag) if what is Earlier.STORED else has_flag

    def differs(self, granule: CardGranule[V]) -> V:
        """Exchange a hash of the value with that of the last writer."""
        assert granule.written is not None
        number = self.combine("mul", granule.written, HASH_MULTIPLIER)
        number = self.combine("shr", number, 64 - LAUNCH_SHIFT)
        value = self.combine("or", granule.tag, self.get_stamp(of_program=False))
        value = self.combine("or", value, number)
        before = self.exchange(ShadowTable.VALUES, granule, value)
        return self._differs_below_launch(before, value, 1)

    def find_later_writes(self, granule: CardGranule[V], where: V) -> Iterator[V]:
        """Yield the entry of a program that came between the two exchanges of a store."""
        yield self.load(ShadowTable.WRITERS, granule, where)

    def find_reads(self, granule: CardGranule[V], where: V | None = None) -> Iterator[V]:
        if where is not None:
            for table in (ShadowTable.READERS, ShadowTable.EARLIER_READERS):
                yield self.load(table, granule)
