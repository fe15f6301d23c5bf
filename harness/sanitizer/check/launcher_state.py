"""Buffers of a process that all its launches on this CPU use, one after the other."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from harness.sanitizer.check.options import MAX_REPORTS
from harness.sanitizer.check.program_order import ProgramOrder
from harness.sanitizer.check.region_tables import RaceShadows, ShadowMemory
from harness.sanitizer.cpu.abi import MAX_OVERFLOWS, REPORT_SIZE, LaunchField, OverflowField
from harness.sanitizer.cpu.program_cache import get_jit
from harness.sanitizer.triton import line_tracing, recorded_reach

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

    @contextlib.contextmanager
    def observe_lines(self, kernel: Any, block_lines: Iterable[Any]) -> Iterator[None]:
        """Trace and record the lines that a launch runs, if a tracer or a record wants them."""
        is_tracing, is_recording = sys.gettrace() is not None, recorded_reach.is_recording()
        if not is_tracing and not is_recording:
            yield
            return
        self.ran_flags[:] = 0
        yield
        ran = zip(block_lines, self.ran_flags, strict=False)
        lines = [line for block, has_run in ran if has_run for line in block]
        if is_recording:
            recorded_reach.record_reach(kernel, lines)
        if is_tracing:
            line_tracing.trace_lines(lines)

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
