"""Who touched an element in this launch: tables on the device, found by the element's address.

An entry is an address's tag, a launch's number and whose it is; where another address falls into
the same place the older one is forgotten, so a race may be missed and none is made up. A launch's
number is made on the device by what is launched in front of it, since a graph's replay is a launch
of its own. Numbers come back, and by then each entry has been cleared: a few are with each number.
"""

from __future__ import annotations

from enum import IntEnum

import torch
import triton
import triton.language as tl

SLOTS = 1 << 23  # of each table
TAG_SHIFT, PROGRAM_BITS, FLAGS = 39, 23, 2
LAUNCH_SHIFT = PROGRAM_BITS + FLAGS
LAUNCHES = 1 << (TAG_SHIFT - LAUNCH_SHIFT)
CHANGED, ATOMIC = 1, 2  # flags of who wrote
_PASSING, _STAYING = 1 << 16, 1 << 20  # launches that have a place for their number


class Table(IntEnum):
    WRITERS = 0
    VALUES = 1  # which bits were written, as a hash in the place of the program
    READERS = 2
    EARLIER = 3  # another program that had read, when the last one did


_ENTRIES = SLOTS * len(Table)
_CLEARED = 2 * _ENTRIES // LAUNCHES  # so all are, in half as many launches as there are numbers


@triton.jit(do_not_specialize=["place"])  # type: ignore[untyped-decorator]
def begins(memory, place, tables, LAUNCHES: tl.constexpr, CLEARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """A launch's number, and so many entries cleared."""
    number = tl.atomic_add(memory, 1)
    tl.store(memory + place, number % LAUNCHES)
    first = number % (LAUNCHES // 2) * CLEARED
    tl.store(tables + first + tl.arange(0, CLEARED), 0)


class Shadows:
    """Of one device. Made outside of a capture, once."""

    def __init__(self, device: str | torch.device) -> None:
        self._numbers = torch.zeros(1 + _STAYING, dtype=torch.int64, device=device)
        self._tables = torch.zeros(_ENTRIES, dtype=torch.int64, device=device)
        self._passed, self._stays = 0, _PASSING

    def launch_starts(self, run: object, captured: bool) -> tuple[int, int] | None:
        """Where the next launch's number will be, and the tables; None where there is no room.

        What a graph captured keeps its place, others take turns.
        """
        if captured and self._stays == _STAYING:
            return None
        if captured:
            self._stays += 1
            place = self._stays
        else:
            self._passed = self._passed % _PASSING + 1
            place = self._passed
        run(  # type: ignore[operator]
            begins,
            self._numbers,
            place,
            self._tables,
            LAUNCHES=LAUNCHES,
            CLEARED=_CLEARED,
            grid=(1,),
            warmup=False,
        )
        start = int(self._numbers.data_ptr())
        return start + 8 * place, int(self._tables.data_ptr())
