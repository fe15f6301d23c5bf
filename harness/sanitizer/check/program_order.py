"""Which accesses of two programs the atomics of a launch order.

A compiled kernel logs its atomics. One that releases (unlocks a lock) covers what its program did
before; a later one at the same address that acquires (takes the lock) puts what its program does
afterwards behind that, and behind all that the first program had acquired before. This is the
happens-before of CUDA's memory model, for programs that run one after the other.

Example: program 0 writes an element and sets flag 0, program 1 waits for flag 0 and sets flag 1,
program 2 waits for flag 1 and reads the element: its clock says that it knows the first event of
program 0, which came after the write. A program's clock is an array: the last event of each other
program that it knows of. A missing barrier between the threads of one program is not seen.

A second set of clocks takes each atomic for one that acquires and releases: a race that these
order is one by CUDA's rules, and a warning, since the atomics are there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.sanitizer.cpu.abi import MAX_ATOMICS, AtomicField
from harness.sanitizer.ir.operation_sites import OperationSite

_RELAXED, _ACQUIRE, _RELEASE, _BOTH = 1, 2, 3, 4  # Triton's numbers of memory orders
NEARLY_ORDERED = "a warning: atomics order it, but relaxed ones, by which a GPU need not go"
_MAX_CLOCK_NUMBERS = 1 << 26  # of all addresses together; beyond that everything counts as ordered
_QUERY_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)


class _Clocks:
    """What each program knows of the others, by the atomics that count."""

    def __init__(self, program_count: int, acquiring: set[int], releasing: set[int]) -> None:
        self._program_count = program_count
        self._acquiring, self._releasing = acquiring, releasing
        self._clock = self._make_clock()
        self._clocks_by_address: dict[int, Any] = {}

    @property
    def size(self) -> int:
        return len(self._clocks_by_address) * self._program_count

    def _make_clock(self) -> Any:
        return np.zeros(self._program_count, dtype=np.int32)

    def begin_program(self) -> None:
        self._clock = self._make_clock()

    def knows(self, writer: int, count: int) -> bool:
        """Return whether the running program is behind the writer's next event after `count`."""
        return bool(self._clock[writer] > count)

    def follow_event(self, event: int, program: int, address: int, memory_order: int) -> None:
        known = self._clocks_by_address.get(address)
        if known is not None and memory_order in self._acquiring:
            np.maximum(self._clock, known, out=self._clock)
        if memory_order in self._releasing:
            self._clock[program] = event + 1
            released = self._clock.copy() if known is None else np.maximum(known, self._clock)
            self._clocks_by_address[address] = released


class ProgramOrder:
    """The atomics of the running launch, and the order that they make."""

    def __init__(self) -> None:
        self._log = np.empty((MAX_ATOMICS, len(AtomicField)), dtype=np.int64)
        self._query = _QUERY_TYPE(self._is_ordered)
        self.log_address = int(self._log.ctypes.data)
        self.query_address = ctypes.cast(self._query, ctypes.c_void_p).value or 0
        self.nearly_ordered: set[tuple[int, int]] = set()  # programs, by atomics of any order

    def begin_launch(
        self, sites: Sequence[OperationSite], first_program: int, program_count: int
    ) -> None:
        self._sites, self._first_program = sites, first_program
        self._event_count = 0  # events that the clocks have seen
        self._running_program = -1
        self._clocks = _Clocks(program_count, {_ACQUIRE, _BOTH}, {_RELEASE, _BOTH})
        every = {_RELAXED, _ACQUIRE, _RELEASE, _BOTH}
        self._lenient_clocks = _Clocks(program_count, every, every)
        self.nearly_ordered.clear()

    def _is_ordered(self, writer: int, count: int, program: int, event_count: int) -> int:
        """Return 1 if an access of `writer`, after `count` events, precedes the program's next."""
        if event_count >= MAX_ATOMICS or not self._follow_events(event_count):
            return 1
        if program - self._first_program != self._running_program:
            return 0
        place = writer - self._first_program
        is_ordered = self._clocks.knows(place, count)
        if not is_ordered and self._lenient_clocks.knows(place, count):
            self.nearly_ordered.add((writer, program))
        return int(is_ordered)

    def _follow_events(self, event_count: int) -> bool:
        """Move the clocks on; return False if they would take too much memory."""
        for event in range(self._event_count, event_count):
            if self._clocks.size > _MAX_CLOCK_NUMBERS:
                return False
            program, address, site = self._log[event].tolist()
            program -= self._first_program
            for clocks in (self._clocks, self._lenient_clocks):
                if program != self._running_program:
                    clocks.begin_program()
                if clocks.size <= _MAX_CLOCK_NUMBERS:
                    clocks.follow_event(event, program, address, self._sites[site].memory_order)
            self._running_program = program
        self._event_count = event_count
        return True
