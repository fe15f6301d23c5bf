"""Buffers of a process that all its launches on this CPU use, one after the other."""

from __future__ import annotations

import ctypes

import numpy as np

from harness.sanitizer.check.options import MAX_REPORTS
from harness.sanitizer.check.program_order import ProgramOrder
from harness.sanitizer.check.region_tables import RaceShadows, ShadowMemory
from harness.sanitizer.cpu.abi import MAX_OVERFLOWS, REPORT_SIZE, LaunchField, OverflowField
from harness.sanitizer.cpu.program_cache import get_jit

_SMALLEST_SCRATCH = 1 << 16


class LauncherState:
    """Buffers that all sessions of a process share."""

    def __init__(self) -> None:
        self.shadows = RaceShadows(ShadowMemory(), ShadowMemory())
        self.program_order = ProgramOrder()
        self.overflows = np.zeros((MAX_OVERFLOWS, len(OverflowField)), dtype=np.int64)
        self.context = (ctypes.c_uint64 * len(LaunchField))()
        self.reports = np.zeros((MAX_REPORTS, REPORT_SIZE), dtype=np.int64)
        self.next_program = 1  # a number that no earlier program has
        self._scratch = np.empty(_SMALLEST_SCRATCH, dtype=np.uint8)
        self.ran_flags = np.zeros(256, dtype=np.uint8)  # a flag for each block of a kernel

    def read_reports(self) -> list[list[int]]:
        """Read the reports of the last launch."""
        count = int(self.context[LaunchField.REPORT_COUNT])
        return self.reports[:count].tolist() if count else []

    def reserve_ran_flags(self, count: int) -> int:
        if len(self.ran_flags) < count:
            self.ran_flags = np.zeros(count, dtype=np.uint8)
        return int(self.ran_flags.ctypes.data)

    def reserve_scratch(self, size: int) -> int:
        if len(self._scratch) < size:
            self._scratch = np.empty(size, dtype=np.uint8)
        address = int(self._scratch.ctypes.data)
        return address + -address % 64


_state: LauncherState | None = None


def load_launcher_state() -> LauncherState:
    global _state
    get_jit()
    if _state is None:
        _state = LauncherState()
    return _state
