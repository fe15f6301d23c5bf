"""The entries of `shadow_memory`'s tables, as the checks in Triton's and CUDA's kernels write them.

An entry holds an address's tag (25 bits), the launch's number (14), the program's number (23; for
CUDA, the block's) and two flags.
"""

from __future__ import annotations

from enum import IntEnum

SLOTS_PER_TABLE = 1 << 23  # entries
SLOT_BITS = SLOTS_PER_TABLE.bit_length() - 1
TAG_SHIFT, PROGRAM_BITS, FLAG_BITS = 39, 23, 2
LAUNCH_SHIFT = PROGRAM_BITS + FLAG_BITS
LAUNCH_NUMBER_COUNT = 1 << (TAG_SHIFT - LAUNCH_SHIFT)
CHANGED_FLAG, ATOMIC_FLAG = 1, 2  # flags of a writer's entry
HASH_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, with mixed bits


class ShadowTable(IntEnum):
    WRITERS = 0
    VALUES = 1  # a hash of the written value in the program's bits
    READERS = 2
    EARLIER_READERS = 3  # the reader before the last one, if it is another program
