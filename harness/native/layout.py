"""What a compiled kernel and Python tell each other: tables of 64-bit numbers, field by field."""

from __future__ import annotations

from enum import IntEnum


class Context(IntEnum):
    """One launch. A kernel gets the address of this table and nothing else."""

    GRID_X = 0
    GRID_Y = 1
    GRID_Z = 2
    PROGRAMS = 3  # the address of chosen programs, three numbers each, or 0 for the whole grid
    COUNT = 4  # how many programs run
    SCRATCH = 5
    REPORT = 6
    ARGUMENTS = 7
    REGIONS = 8  # one for each argument
    STORAGES = 9  # regions of all memory that is known, for pointers of unknown origin
    STORAGE_COUNT = 10
    FIRST = 11  # the number of this launch's first program: no number is used twice
    ORDINAL = 12  # of the program that runs, within this launch
    WRAPS = 13
    WRAP_COUNT = 14
    RAN = 16  # a byte for each block of operations
    REFUSED = 15  # which of `Unanswered` was met, or 0
    ONLY = 17  # a byte for each site: whose wraps count, and nothing but those and ends; 0 for all


class Region(IntEnum):
    """Memory that pointers of one origin may reach, and what lies beside it."""

    START = 0
    END = 1
    STORAGE = 2  # where the storage starts: shadows count from there
    STORAGE_SIZE = 3
    UNWRITTEN = 4  # one byte a byte, or 0
    WRITERS = 5  # one number a granule
    READERS = 6  # likewise, or 0 where reads are not watched
    GRANULE = 7  # as a power of two
    READ_FENCES = 8  # a table of masks by the program's ordinal, or 0
    WRITE_FENCES = 9


class Report(IntEnum):
    KIND = 0
    SITE = 1
    ADDRESS = 2
    MANY = 3
    LANES = 4
    OTHER = 5  # the number of another program, or of a remembered wrap
    REGION = 6
    X = 7
    Y = 8
    Z = 9


class Wrap(IntEnum):
    SITE = 0
    LEFT = 1
    RIGHT = 2
    RESULT = 3


class Fault(IntEnum):
    OUTSIDE = 1
    FENCE_READ = 2
    FENCE_WRITE = 3
    UNWRITTEN = 4
    LANES = 5
    STORES = 6
    ATOMIC_BESIDE_STORE = 7
    READ_AFTER_WRITE = 8
    WRITE_AFTER_READ = 9
    WRAPPED = 10
    ASSERTION = 11
    REFUSED = 12
    WAITS = 13


MOST_WRAPS = 1 << 16

# A writer's number in a shadow: three flags below it.
ATOMIC, CHANGED, SHIFT = 1, 2, 2
# A first reader's number, and above it how far the second one is from it.
READER_BITS = 40


class Unanswered(IntEnum):
    """What nobody says the answer of, met while a kernel ran."""

    CONVERSION = 1
    HISTOGRAM = 2

    @property
    def words(self) -> str:
        return {
            Unanswered.CONVERSION: "a conversion of infinities or NaN from fp8e5 to bf16",
            Unanswered.HISTOGRAM: "a histogram of a number that has no bin",
        }[self]
