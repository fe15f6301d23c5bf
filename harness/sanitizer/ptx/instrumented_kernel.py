"""What a checked build knows of each of its kernels: plain values, saved beside the build.

A kernel with checks has one more parameter behind its own: `CHECK_HEADER` bytes (the address of
its report table, the launch's number; for races the addresses of the launch's number on the device
and of the shadow tables, and the groups that count; for uninitialized reads the pointers into
memory from `torch.empty`), then two numbers for each entry, the start of
a tensor and a limit. An address is outside of it unless `address - start < limit`, as unsigned
numbers.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.core.files import write_atomically

CHECK_HEADER, ENTRY_BYTES = 48, 16
LAUNCH_NUMBER_OFFSET, SHADOW_TABLES_OFFSET, RACE_MASK_OFFSET, EMPTY_MASK_OFFSET = 16, 24, 32, 40
MAX_RACE_GROUPS = 32  # bits of the mask that say which are checked; as many say which are read
MARKER = "unfix_checked_"  # of a variable whose name ends in the key of the module's file
KEY_LENGTH = 32
MARKED_KEY = re.compile(MARKER.encode() + rb"([0-9a-f]{%d})" % KEY_LENGTH)
UNBOUNDED = 1 << 62  # a limit above all addresses
FileLine = tuple[str, int]


def empty_bit(root: int) -> int:
    """Return the bit of a parameter in the mask of pointers into memory from `torch.empty`."""
    return 1 << root // 8 % 63


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """One tensor that an access may be meant for.

    `roots` are the parameters (byte offsets) that its address may come from, and this entry is for
    the one at `place`; `size` are the bytes of the access, 0 if the kernel adds them itself.
    """

    roots: tuple[int, ...]
    place: int
    size: int


@dataclass(frozen=True, slots=True)
class InstrumentedSite:
    """An access, or an integer operation that may overflow."""

    lines: tuple[FileLine, ...]  # its line, then those of its callers
    label: str  # "read", "write", "update", or the operation's name
    size: int
    text: str
    roots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RaceGroup:
    """Accesses that may meet in memory, checked in pieces of `piece` bytes."""

    roots: tuple[int, ...]
    piece: int
    verbs: tuple[str, ...]


@dataclass(slots=True)
class InstrumentedKernel:
    entry: str
    parameter_layout: tuple[tuple[int, int], ...]  # offset and size of each of its own parameters
    entries: list[CheckEntry] = field(default_factory=list)
    sites: list[InstrumentedSite] = field(default_factory=list)
    overflows: list[InstrumentedSite] = field(default_factory=list)
    unchecked: dict[str, int] = field(default_factory=dict)  # accesses, by the reason
    race_groups: list[RaceGroup] = field(default_factory=list)  # empty: no check for races
    refusal: str = ""  # why the whole kernel is as it was

    @property
    def check_bytes(self) -> int:
        """The size of the parameter that the checks add."""
        return CHECK_HEADER + ENTRY_BYTES * len(self.entries)


def write_kernels(file: Path, kernels: dict[str, InstrumentedKernel]) -> None:
    write_atomically(file, json.dumps([asdict(value) for value in kernels.values()]))


def read_kernels(file: Path) -> dict[str, InstrumentedKernel]:
    import msgspec  # the program in the place of ptxas, which only writes, runs without packages

    listed = msgspec.json.decode(file.read_bytes(), type=list[InstrumentedKernel])
    return {kernel.entry: kernel for kernel in listed}
