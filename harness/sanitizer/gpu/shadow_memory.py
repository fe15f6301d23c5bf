"""The programs that accessed an element in this launch: hash tables on the device, by address.

Invariant: a hash collision can lose a report but never invents one, as an entry of another tag or
launch is ignored (`shadow_entries`). A kernel launched in front of each checked one makes the
launch's number on the device, since each replay of a graph is a launch of its own. Numbers repeat
after 16,384 launches; with each number some entries are cleared, all within 8,192 launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from harness.sanitizer.gpu.shadow_entries import (
    LAUNCH_NUMBER_COUNT,
    SLOTS_PER_TABLE,
    ShadowTable,
)

# Slots for launch numbers: those that take turns, and all, with those of captured launches.
_TRANSIENT_LAUNCHES, _LAUNCH_CAPACITY = 1 << 16, 1 << 20

_ENTRY_COUNT = SLOTS_PER_TABLE * len(ShadowTable)
_CLEARED_PER_LAUNCH = 2 * _ENTRY_COUNT // LAUNCH_NUMBER_COUNT


@triton.jit(do_not_specialize=["slot"])  # type: ignore[untyped-decorator]
def begin_launch_kernel(  # type: ignore[no-untyped-def]
    launch_numbers, slot, tables, LAUNCHES: tl.constexpr, CLEARED: tl.constexpr
):
    """Store the launch's number, and clear some entries."""
    number = tl.atomic_add(launch_numbers, 1)
    tl.store(launch_numbers + slot, number % LAUNCHES)
    first = number % (LAUNCHES // 2) * CLEARED
    tl.store(tables + first + tl.arange(0, CLEARED), 0)


class RaceShadowMemory:
    """The tables of one device; to be made outside a capture."""

    def __init__(self, device: str | torch.device) -> None:
        self._launch_numbers = torch.zeros(1 + _LAUNCH_CAPACITY, dtype=torch.int64, device=device)
        self._tables = torch.zeros(_ENTRY_COUNT, dtype=torch.int64, device=device)
        self._last_transient, self._last_captured = 0, _TRANSIENT_LAUNCHES

    def begin_launch(self, launch: object, captured: bool) -> tuple[int, int] | None:
        """Return the addresses of the next launch's number and of the tables; None without room.

        A captured launch keeps its slot, other launches take turns.
        """
        if captured and self._last_captured == _LAUNCH_CAPACITY:
            return None
        if captured:
            self._last_captured += 1
            slot = self._last_captured
        else:
            self._last_transient = self._last_transient % _TRANSIENT_LAUNCHES + 1
            slot = self._last_transient
        launch(  # type: ignore[operator]
            begin_launch_kernel,
            self._launch_numbers,
            slot,
            self._tables,
            LAUNCHES=LAUNCH_NUMBER_COUNT,
            CLEARED=_CLEARED_PER_LAUNCH,
            grid=(1,),
            warmup=False,
        )
        start = int(self._launch_numbers.data_ptr())
        return start + 8 * slot, int(self._tables.data_ptr())
