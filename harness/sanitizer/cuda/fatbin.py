"""The PTX inside a fatbin: what nvcc embeds in a module with `code=compute_90a --no-compress`.

A fatbin is a header (magic, version, size of the header, size of all entries) and entries one after
the other; an entry's kind is 1 for PTX and 2 for machine code of one card.
"""

from __future__ import annotations

import ctypes
import struct

from harness.sanitizer.device.refusals import UnansweredName

HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQI")
_MAGIC = 0xBA55ED50
_PTX = 1


def read_ptx(address: int) -> list[str]:
    """Return the PTX texts of a fatbin in this process's memory."""
    magic, _, header_size, size = HEADER.unpack(ctypes.string_at(address, HEADER.size))
    if magic != _MAGIC:
        raise UnansweredName(f"a module's fatbin begins with {magic:#x}, not {_MAGIC:#x}")
    data = ctypes.string_at(address + header_size, size)
    texts, position = [], 0
    while position + _ENTRY.size <= len(data):
        kind, _, entry_header, entry_size, compressed = _ENTRY.unpack_from(data, position)
        start = position + entry_header
        if kind == _PTX and compressed:
            raise UnansweredName("a module's PTX is compressed: it was built without --no-compress")
        if kind == _PTX:
            texts.append(data[start : start + entry_size].rstrip(b"\0").decode())
        position = start + entry_size
    if not texts:
        raise UnansweredName(
            "a module holds no PTX, only machine code: it was not built by this project's flags"
        )
    return texts
