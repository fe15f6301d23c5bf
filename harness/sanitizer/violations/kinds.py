"""The kinds of violations: the number that a compiled check stores, on a CPU and on a GPU.

A check of one access knows its kind. A race has the kind of its two accesses: `RACES` is the one
place that says which. A GPU's report has one word for a lane: the lowest 16 bits number the
operation that overflowed, or are 0; above them is one bit for each kind (`to_word_bit`). Example: a
lane that leaves its tensor (bit 16), by an address in which the third operation overflowed, has the
word 0x10003.
"""

from __future__ import annotations

from enum import IntEnum


class ViolationKind(IntEnum):
    """Where a GPU's word has several bits, the lowest number is reported: it is the cause."""

    OUT_OF_BOUNDS = 1
    FORBIDDEN_READ = 2  # by an access rule
    FORBIDDEN_WRITE = 3
    UNINITIALIZED_READ = 4
    WRITE_WRITE_RACE = 5
    ATOMIC_STORE_RACE = 6
    READ_AFTER_WRITE = 7
    WRITE_AFTER_READ = 8
    ASSERTION = 9
    OVERFLOW = 10
    LANE_RACE = 11
    ENDLESS_WAIT = 12
    # Of CUDA's threads:
    MISALIGNED = 16
    UNINITIALIZED_PRODUCT = 17
    COPY_IN_PROGRESS = 18
    COPY_WITHOUT_BARRIER = 19
    TRAP = 20
    DIVERGENT_BARRIER = 21
    DEADLOCK = 22
    MISSING_LANES = 23


# By the verb of the earlier access, and that of the later one.
RACES = {
    ("write", "write"): ViolationKind.WRITE_WRITE_RACE,
    ("write", "update"): ViolationKind.ATOMIC_STORE_RACE,
    ("update", "write"): ViolationKind.ATOMIC_STORE_RACE,
    ("write", "read"): ViolationKind.READ_AFTER_WRITE,
    ("read", "write"): ViolationKind.WRITE_AFTER_READ,
}
FORBIDDEN = {"read": ViolationKind.FORBIDDEN_READ, "write": ViolationKind.FORBIDDEN_WRITE}

# The kinds that each check may report; the others are always looked for.
KINDS_OF_CHECKS = {
    "bounds": (ViolationKind.OUT_OF_BOUNDS,),
    "overflow": (ViolationKind.OVERFLOW,),
    "races": (ViolationKind.LANE_RACE, *dict.fromkeys(RACES.values())),
    "uninitialized": (ViolationKind.UNINITIALIZED_READ,),
}
CHECK_NAMES = tuple(KINDS_OF_CHECKS)

# A GPU's word
OVERFLOW_MASK = 0xFFFF


def to_word_bit(kind: ViolationKind) -> int:
    if not 1 <= kind <= ViolationKind.OVERFLOW:
        raise ValueError(f"a GPU's report has no bit for {kind.name}")
    return 1 << (kind + 15)


def read_kind(word: int) -> ViolationKind:
    """Return what a word reports; an overflow counts before the access that it led to."""
    if word & OVERFLOW_MASK:
        return ViolationKind.OVERFLOW
    return next(kind for kind in ViolationKind if word & to_word_bit(kind))
