"""What one thread of a compiled kernel uses, from the machine code that ptxas wrote (a cubin).

A cubin is an ELF file. Its section `.nv.info` has entries of a kind, a name, the size of a value
and the value; those that this module reads have the number of a function and a count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ENTRY = struct.Struct("<BBH")
_SIZED_VALUE = 4  # the kind whose value has the size that the entry says
_FRAME_SIZE, _REGISTERS = 0x11, 0x2F


@dataclass(frozen=True, slots=True)
class ThreadUse:
    registers: int
    stack_bytes: int  # where registers are spilled


def read_thread_use(binary: bytes) -> ThreadUse:
    """Read the largest numbers of the file's functions."""
    largest = {_REGISTERS: 0, _FRAME_SIZE: 0}
    for name, value in _iterate_entries(_find_section(binary, b".nv.info")):
        if name in largest:
            largest[name] = max(largest[name], struct.unpack_from("<I", value, 4)[0])
    return ThreadUse(largest[_REGISTERS], largest[_FRAME_SIZE])


def _find_section(binary: bytes, name: bytes) -> bytes:
    (start,) = struct.unpack_from("<Q", binary, 40)
    size, count, names = struct.unpack_from("<HHH", binary, 58)
    sections = [
        (struct.unpack_from("<I", binary, place)[0], *struct.unpack_from("<QQ", binary, place + 24))
        for place in range(start, start + count * size, size)
    ]
    for name_offset, offset, length in sections:
        text = sections[names][1] + name_offset
        if binary[text : binary.index(b"\0", text)] == name:
            return binary[offset : offset + length]
    return b""


def _iterate_entries(section: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + _ENTRY.size <= len(section):
        kind, name, size = _ENTRY.unpack_from(section, place)
        place += _ENTRY.size
        if kind == _SIZED_VALUE:
            yield name, section[place : place + size]
            place += size
