"""The interface of compiled kernels and Python: tables of 64-bit numbers, field by field."""

from __future__ import annotations

from enum import IntEnum


class LaunchField(IntEnum):
    """The table of one launch; its address is the only argument of a kernel."""

    GRID_X = 0
    GRID_Y = 1
    GRID_Z = 2
    CHOSEN_PROGRAMS = 3  # the address of three numbers for each; 0 for the whole grid
    PROGRAM_COUNT = 4  # number of programs that run
    SCRATCH = 5
    REPORTS = 6  # `ReportField`s of each
    ARGUMENTS = 7
    REGIONS = 8  # one for each argument
    STORAGES = 9  # regions of all tracked memory, for pointers of unknown origin
    STORAGE_COUNT = 10
    FIRST_PROGRAM = 11  # the number of this launch's first program: no number is used twice
    PROGRAM_ORDINAL = 12  # position of the running program in the launch
    OVERFLOWS = 13
    OVERFLOW_COUNT = 14
    RAN_FLAGS = 16  # a byte for each block of operations
    UNDEFINED_RESULT = 15  # an `UndefinedResult`, or 0
    WATCHED_SITES = 17  # a byte for each site whose overflow is reported; 0 for all sites
    ATOMIC_LOG = 18  # `AtomicField`s of each atomic so far; 0 if programs do not synchronize
    ATOMIC_COUNT = 19
    READS_RACE = 20  # 1 if reads of what another program wrote are checked by the log
    ORDER_QUERY = 21  # the address of a function: see `_build_is_ordered`
    ORDER_ENTRY = 22  # the last question to it: a writer's entry, the program, the count
    ORDER_PROGRAM = 23
    ORDER_COUNT = 24
    ORDER_ANSWER = 25
    REPORT_COUNT = 26
    REPORT_LIMIT = 27  # the launch ends with this many reports
    REPORT_STATES = 28  # a `ReportState` for each site and kind
    INTERRUPTED = 30  # not 0: a signal ends the launch
    EXTENTS = 29  # for each site the largest 32-bit integer in its addresses; 0 if not measured


class RegionField(IntEnum):
    """Memory that pointers of one origin may reach, and its shadows."""

    START = 0
    END = 1
    STORAGE = 2  # start of the storage, from which shadows count
    STORAGE_SIZE = 3
    UNINITIALIZED = 4  # a byte for each byte, or 0
    WRITERS = 5  # a number for each granule
    READERS = 6  # likewise; 0 if reads are not tracked
    GRANULE_BITS = 7  # exponent of two
    READ_RULES = 8  # a table of masks by the program's ordinal, or 0
    WRITE_RULES = 9


class AtomicField(IntEnum):
    """One lane of an atomic, in the order in which they ran."""

    PROGRAM = 0
    ADDRESS = 1
    SITE = 2


class ReportField(IntEnum):
    KIND = 0
    SITE = 1
    ADDRESS = 2
    VIOLATING_LANES = 3
    ACTIVE_LANES = 4
    OTHER = 5  # the number of another program, or of a recorded overflow
    REGION = 6
    X = 7
    Y = 8
    Z = 9
    ORDINAL = 10  # position of the program in the launch
    OVERFLOW = 11  # the first of four numbers: an `OverflowField` each


REPORT_SIZE = ReportField.OVERFLOW + 4  # numbers


class ReportState(IntEnum):
    """Whether a violation at a site is reported."""

    UNSEEN = 0
    SEEN = 1  # it was; once is enough
    OFF = 2  # the session does not ask for it


KINDS_PER_SITE = 16  # of those that Triton's kernels can have


class OverflowField(IntEnum):
    SITE = 0
    LEFT = 1
    RIGHT = 2
    RESULT = 3


MAX_OVERFLOWS = 1 << 16
OVERFLOW_FLAG = 1 << 31  # in an overflow state: the rest is a recorded overflow's number

# A writer's number in a shadow has two flags below it, and the count of atomics above it.
ATOMIC_FLAG, CHANGED_FLAG, PROGRAM_SHIFT = 1, 2, 2
WRITER_BITS = 42
COUNT_SHIFT = PROGRAM_SHIFT + WRITER_BITS
MAX_ATOMICS = (1 << (64 - COUNT_SHIFT)) - 1
# A reader's entry: the first reader's number, above it the distance to the second one's.
READER_BITS = 40


class UndefinedResult(IntEnum):
    """An operation whose result CUDA does not define, found while a kernel ran."""

    CONVERSION = 1
    HISTOGRAM = 2

    @property
    def description(self) -> str:
        return {
            UndefinedResult.CONVERSION: "a conversion of infinities or NaN from fp8e5 to bf16",
            UndefinedResult.HISTOGRAM: "a histogram of a number that has no bin",
        }[self]
