"""The words in which checks ask: each of the four back ends implements these, and no check.

A check is a function that calls words of one access. What it gets back are values of the code that
the back end writes (`V`): names of registers, for LLVM and for PTX, or values of Triton's IR.
Example: for `access.report_place(kind, question)` the back end decides which lanes are asked, what
happens to those where the answer is yes, and how the report is written.

What a back end cannot look up it does not yield (`marks`, `granules`), and `violations/targets.py`
says "no" for that kind of violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from harness.sanitizer.violations.kinds import ViolationKind

V = TypeVar("V")
G = TypeVar("G")  # a back end's own class: a piece of memory that has entries


class Mark(Enum):
    """What a back end can say of a lane, by its address or by tables beside the memory."""

    OVERFLOWED = auto()  # an integer in its address did
    MISALIGNED = auto()
    READ_EXCLUDED = auto()  # by an access rule
    WRITE_EXCLUDED = auto()
    UNINITIALIZED = auto()
    COPY_IN_PROGRESS = auto()  # an asynchronous one into what it accesses
    COPY_WITHOUT_BARRIER = auto()


class Earlier(Enum):
    """What a granule's entry says about the last write."""

    STORED = auto()  # it was no atomic update
    ATOMIC = auto()
    CHANGED = auto()  # it changed the value


@dataclass(frozen=True, slots=True)
class Lane(Generic[V]):
    """One access of a block of accesses.

    `place`: by what the back end finds the lane's other values, as its index in the block.
    """

    address: V
    place: V


@dataclass(frozen=True, slots=True)
class Region(Generic[V]):
    """Memory that an access may be meant for.

    `limit`: the first distance from the start at which the access no longer fits.
    """

    start: V
    limit: V


Question = Callable[[Lane[V]], V]  # returns a condition


class CheckCode(Protocol[V]):
    """Arithmetic of addresses, which have 64 bits, and of conditions."""

    def subtract(self, left: V, right: V) -> V: ...

    def clamp_to_zero(self, number: V) -> V:
        """Return the number, or 0 for a negative one."""
        ...

    def is_at_least(self, left: V, right: V) -> V:
        """Compare without signs."""
        ...

    def both(self, first: V, second: V) -> V: ...

    def negate(self, condition: V) -> V: ...


class CheckedAccess(Protocol[V, G]):
    """An access while its checks are written."""

    @property
    def code(self) -> CheckCode[V]: ...

    @property
    def verb(self) -> str:
        """Return "read", "write" or "update"."""
        ...

    @property
    def may_order(self) -> bool:
        """Return whether the access may order others: it is volatile, or a release."""
        ...

    @property
    def kinds(self) -> frozenset[ViolationKind]:
        """Return what is asked for: what the target can, and the caller wants."""
        ...

    # Where it goes

    def skip_reported_lanes(self) -> AbstractContextManager[None]:
        """Lanes that are reported inside do not access; the kernel goes on with the others."""
        ...

    def regions(self) -> Sequence[Region[V]]:
        """Return the memory that the access is meant for; several where its pointer is selected."""
        ...

    def report_place(self, kind: ViolationKind, question: Question[V]) -> None:
        """Report lanes where the answer is yes; of lanes in a row the first is asked for all.

        The question reads no memory, since lanes that are masked off are asked, too.
        """
        ...

    # What is there

    def marks(self, mark: Mark) -> Iterator[Question[V]]:
        """Yield the question whether a lane has a mark, or nothing if no lane can have it.

        The body of `for is_empty in access.marks(…)` may be code that runs under a condition.
        """
        ...

    def report(self, kind: ViolationKind, question: Question[V]) -> None:
        """Report lanes where the answer is yes, of those that access."""
        ...

    def clear_mark(self, mark: Mark) -> None:
        """Take the mark off what all lanes write; called in the loop over `marks`."""
        ...

    # In which order

    def granules(self) -> Iterable[G]:
        """Yield the pieces of the memory that have entries: one may be all, in a loop."""
        ...

    def changes(self, granule: G) -> V | None:
        """Return whether a write changes the memory; None if nobody reads it."""
        ...

    def enter(self, granule: G, changes: V | None = None) -> V:
        """Enter this access for later ones, and return the entry of the last write before it."""
        ...

    def was(self, entry: V, what: Earlier) -> V: ...

    def differs(self, granule: G) -> V:
        """Return whether a write's value is another one than that of the write before it."""
        ...

    def find_later_writes(self, granule: G, where: V) -> Iterable[V]:
        """Yield entries that came while this access was entered; `where` they matter."""
        ...

    def find_reads(self, granule: G, where: V | None = None) -> Iterable[V]:
        """Yield the entries of reads since the last write, for a back end that keeps them."""
        ...

    def report_race(
        self, kind: ViolationKind, granule: G, entry: V, where: V | None = None
    ) -> None:
        """Report the access of an entry, unless something orders it before this one."""
        ...
