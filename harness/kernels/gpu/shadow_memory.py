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

SLOTS_PER_TABLE = 1 << 23  # of each table
TAG_SHIFT, PROGRAM_BITS, FLAG_BITS = 39, 23, 2
LAUNCH_SHIFT = PROGRAM_BITS + FLAG_BITS
LAUNCH_NUMBER_COUNT = 1 << (TAG_SHIFT - LAUNCH_SHIFT)
CHANGED_FLAG, ATOMIC_FLAG = 1, 2  # flags of who wrote
_TRANSIENT_LAUNCHES, _LAUNCH_CAPACITY = (
    1 << 16,
    1 << 20,
)  # launches that have a place for their number


class ShadowTable(IntEnum):
    WRITERS = 0
    VALUES = 1  # which bits were written, as a hash in the place of the program
    READERS = 2
    EARLIER_READERS = 3  # another program that had read, when the last one did


_ENTRY_COUNT = SLOTS_PER_TABLE * len(ShadowTable)
_CLEARED_PER_LAUNCH = (
    2 * _ENTRY_COUNT // LAUNCH_NUMBER_COUNT
)  # so all are, in half as many launches as there are numbers


@triton.jit(do_not_specialize=["place"])  # type: ignore[untyped-decorator]
def begin_launch_kernel(  # type: ignore[no-untyped-def]
    launch_numbers, place, tables, LAUNCHES: tl.constexpr, CLEARED: tl.constexpr
):
    """A launch's number, and so many entries cleared."""
    number = tl.atomic_add(launch_numbers, 1)
    tl.store(launch_numbers + place, number % LAUNCHES)
    first = number % (LAUNCHES // 2) * CLEARED
    tl.store(tables + first + tl.arange(0, CLEARED), 0)


class RaceShadowMemory:
    """Of one device. Made outside of a capture, once."""

    def __init__(self, device: str | torch.device) -> None:
        self._launch_numbers = torch.zeros(1 + _LAUNCH_CAPACITY, dtype=torch.int64, device=device)
        self._tables = torch.zeros(_ENTRY_COUNT, dtype=torch.int64, device=device)
        self._last_transient, self._last_captured = 0, _TRANSIENT_LAUNCHES

    def begin_launch(self, launch: object, captured: bool) -> tuple[int, int] | None:
        """Where the next launch's number will be, and the tables; None where there is no room.

        What a graph captured keeps its place, others take turns.
        """
        if captured and self._last_captured == _LAUNCH_CAPACITY:
            return None
        if captured:
            self._last_captured += 1
            place = self._last_captured
        else:
            self._last_transient = self._last_transient % _TRANSIENT_LAUNCHES + 1
            place = self._last_transient
        launch(  # type: ignore[operator]
            begin_launch_kernel,
            self._launch_numbers,
            place,
            self._tables,
            LAUNCHES=LAUNCH_NUMBER_COUNT,
            CLEARED=_CLEARED_PER_LAUNCH,
            grid=(1,),
            warmup=False,
        )
        start = int(self._launch_numbers.data_ptr())
        return start + 8 * place, int(self._tables.data_ptr())
