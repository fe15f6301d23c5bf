"""The interface of compiled PTX and Python: tables of 64-bit numbers, field by field."""

from __future__ import annotations

from enum import IntEnum


class ContextField(IntEnum):
    """The table of one launch; its address is the first argument of all compiled functions."""

    GRID_X = 0
    GRID_Y = 1
    GRID_Z = 2
    BLOCK_X = 3
    BLOCK_Y = 4
    BLOCK_Z = 5
    CTA_X = 6  # the running block
    CTA_Y = 7
    CTA_Z = 8
    THREADS = 9  # threads of a block
    THREAD_FUNCTION = 10
    FRAMES = 11
    FRAME_SIZE = 12  # bytes
    LOCALS = 13
    LOCAL_SIZE = 14  # bytes of local memory of a thread
    EXCHANGES = 15  # a table of words for each thread
    PARAMETERS = 16
    PARAMETER_REGIONS = 17  # the region of each 8 bytes of the parameters
    SHARED = 18
    SHARED_SIZE = 19
    VARIABLES = 20  # the address of each variable of the module
    REGIONS = 21
    REGION_COUNT = 22
    REPORT = 23
    FIND_REGION = 24  # a function of Python, for an address in no region
    EPOCH = 25  # grows with every barrier and every block; no number is used twice
    LAUNCH_EPOCH = 26  # the first one of this launch
    BLOCK_EPOCH = 27  # the first one of this block
    BARRIERS = 28  # BarrierField for each barrier
    BLOCK_ORDINAL = 29  # the running block's position in the launch
    SHARED_SHADOW = 30  # uninitialized bytes of shared memory, or 0
    OVERFLOWS = 31
    OVERFLOW_COUNT = 32
    UNORDERED_BLOCKS = 33  # 1 if the kernel does not synchronize its blocks itself
    DYNAMIC_SHARED = 34  # bytes
    RAN_FLAGS = 35  # a byte for each block of operations
    COPIES = 36  # the copy into each 4 bytes of shared memory, or 0 where a kernel makes none
    CHOSEN = 37  # the ordinal of each block that runs; with a count of 0 all run
    CHOSEN_COUNT = 38
    EXTENTS = 39  # the largest 32-bit integer in an address, by the access's site; 0 asks for none


class FrameField(IntEnum):
    """The state of one thread: a header, then a slot for each value that outlives a suspension."""

    RESUME = 0  # where it goes on
    STATUS = 1  # ThreadStatus
    TID_X = 2
    TID_Y = 3
    TID_Z = 4
    THREAD = 5  # its number in the block
    LOCAL = 6  # the address of its local memory
    KIND = 7  # WaitKind
    SITE = 8
    MASK = 9  # lanes that take part
    WORDS = 10  # words of its payload
    EXCHANGE = 11  # the payloads of its group: word by word, 32 lanes each
    GROUP = 12  # the lanes that took part
    BALLOT = 13  # the lanes whose first word is odd
    WARP_SYNC = 14  # counts synchronizations of its warp
    SPINS = 15  # accesses in loops that may wait for others
    PAYLOAD = 16
    COPY_GROUPS = 24  # groups of asynchronous copies that are committed
    COPY_GROUPS_DONE = 25  # those that have been waited for
    COPY_GROUPS_ORDERED = 26  # those that had been before the epoch of the last wait
    COPY_EPOCH = 27  # of the last wait
    COPY_SYNC = 28  # WARP_SYNC at the last wait


FRAME_HEADER_FIELDS = 32
PAYLOAD_WORDS = 16
EXCHANGE_BYTES = PAYLOAD_WORDS * 32 * 4


class ThreadStatus(IntEnum):
    READY = 0
    EXITED = 1
    WAITING = 2


class WaitKind(IntEnum):
    WARP = 1  # the other lanes of a mask, at the same instruction
    ACTIVE = 2  # all lanes of its warp that can get there
    BARRIER = 3  # payload: barrier, threads (0 for all), predicate
    YIELD = 4  # lets other threads run


class BarrierField(IntEnum):
    ARRIVED = 0  # threads that arrived and did not wait
    WAITING = 1
    EXPECTED = 2
    TRUE = 3  # waiting threads whose predicate holds


BARRIER_COUNT = 17  # those of a block, and the one of its cluster


class ThreadOutcome(IntEnum):
    """What a call of the thread function returns."""

    EXITED = 0
    SUSPENDED = 1
    VIOLATED = 2


class PtxRegionField(IntEnum):
    """Memory of one tensor or variable, and its shadows."""

    START = 0
    END = 1
    SPACE = 2  # RegionSpace
    STORAGE = 3  # the address from which shadows count
    UNINITIALIZED = 4  # a byte for each byte, or 0
    WRITERS = 5  # a number for each granule, or 0
    READERS = 6
    GRANULE_BITS = 7
    READ_RULES = 8  # a table of masks by the block's ordinal, or 0
    WRITE_RULES = 9


REGION_ROW = f"[{len(PtxRegionField)} x i64]"  # in LLVM's words


class RegionSpace(IntEnum):
    GLOBAL = 0
    SHARED = 1
    LOCAL = 2  # addresses count from the start of a thread's local memory


class PtxReportField(IntEnum):
    KIND = 0
    SITE = 1
    ADDRESS = 2
    SIZE = 3
    REGION = 4
    THREAD = 5
    OTHER = 6
    X = 7
    Y = 8
    Z = 9


MAX_OVERFLOWS = 1 << 12
# Of the state of an address: the rest is a recorded overflow's number, else the largest integer.
OVERFLOW_FLAG = 1 << 31


class OverflowRecordField(IntEnum):
    SITE = 0
    TRUE_VALUE = 1
    WRAPPED_VALUE = 2
