"""The memory of one launch: its regions, frames, shared and local memory, and the context table."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.sanitizer.ptx.abi import (
    BARRIER_COUNT,
    EXCHANGE_BYTES,
    MAX_OVERFLOWS,
    BarrierField,
    ContextField,
    FrameField,
    OverflowRecordField,
    PtxRegionField,
    PtxReportField,
    RegionSpace,
)
from harness.sanitizer.ptx.check_values import find_targets
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks
from harness.sanitizer.ptx.launch_shadows import LaunchShadows
from harness.sanitizer.ptx.lowering import LoweredPtx

_SPARE_REGIONS = 256  # for allocations that only a loaded pointer leads to
_SHARED_ALIGNMENT = 1024
_FIND_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64)
_CLASSIFIED_BYTES = 32768  # parameters are at most 32,764 bytes


class ProcessBuffers:
    """Buffers that all launches of a process share; they grow and are never cleared."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self.epoch = 1  # a number that no earlier launch has used
        self.overflows = np.zeros((MAX_OVERFLOWS, len(OverflowRecordField)), dtype=np.int64)

    def reserve(self, name: str, size: int, alignment: int = 64) -> tuple[int, Any]:
        """Return the address of `size` bytes, and the array that they are in."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size + alignment:
            buffer = np.zeros(max(size + alignment, 1 << 14), dtype=np.uint8)
            self._buffers[name] = buffer
        address = int(buffer.ctypes.data)
        start = -address % alignment
        return address + start, buffer[start : start + size]


BUFFERS = ProcessBuffers()


class LaunchMemory:
    """The tables of one launch; it has to live while the kernel runs."""

    def __init__(
        self,
        launch: CudaLaunch,
        lowered: LoweredPtx,
        checks: ExecutorChecks,
        variable_addresses: Sequence[int],
        thread_function: int,
    ) -> None:
        self.launch, self.lowered = launch, lowered
        self.shadows = LaunchShadows(launch, lowered, checks)
        self.threads = math.prod(launch.block)
        self.shared_size = lowered.shared_size + launch.shared_bytes
        self.shared, _ = BUFFERS.reserve("shared", self.shared_size + 16, _SHARED_ALIGNMENT)
        self.allocations: list[Allocation | None] = []  # by region
        self.region_names: list[str] = []
        capacity = 1 + len(lowered.variables) + len(launch.allocations) + _SPARE_REGIONS
        self.regions = np.zeros((capacity, len(PtxRegionField)), dtype=np.int64)
        self._add_region("", 0, 0, RegionSpace.LOCAL)
        self.shadows.open_shared(self.shared, self.shared_size)
        self._add_variables(variable_addresses)
        for allocation in launch.allocations:
            self._add_allocation(allocation)
        self.context = (ctypes.c_uint64 * len(ContextField))()
        self.report = np.zeros(len(PtxReportField), dtype=np.int64)
        self.overflows = BUFFERS.overflows
        self._find = _FIND_SIGNATURE(self._find_region)
        self._arrays: list[Any] = []  # whose addresses the tables hold
        self._fill_context(variable_addresses, thread_function)

    # Regions

    @property
    def region_count(self) -> int:
        return len(self.region_names)

    def _add_region(
        self,
        name: str,
        start: int,
        end: int,
        space: RegionSpace,
        allocation: Allocation | None = None,
    ) -> int:
        number = len(self.region_names)
        self.regions[number, PtxRegionField.START] = start
        self.regions[number, PtxRegionField.END] = end
        self.regions[number, PtxRegionField.SPACE] = int(space)
        self.regions[number, PtxRegionField.STORAGE] = start
        self.shadows.fill_region(self.regions[number], space, allocation)
        self.region_names.append(name)
        self.allocations.append(allocation)
        return number

    def _add_variables(self, addresses: Sequence[int]) -> None:
        for placed, address in zip(self.lowered.variables, addresses, strict=True):
            variable = placed.variable
            size = variable.size
            if variable.space == "shared":
                start = self.shared + placed.offset
                size = size or self.launch.shared_bytes
                self._add_region(variable.name, start, start + size, RegionSpace.SHARED)
            elif variable.space == "local":
                end = placed.offset + size
                self._add_region(variable.name, placed.offset, end, RegionSpace.LOCAL)
            else:
                self._add_region(variable.name, address, address + size, RegionSpace.GLOBAL)

    def _add_allocation(self, allocation: Allocation) -> int:
        return self._add_region(
            allocation.name, allocation.base, allocation.end, RegionSpace.GLOBAL, allocation
        )

    def _find_region(self, address: int) -> int:
        """Add the allocation that an address lies in; 0 if the host knows none."""
        found = self.launch.find_allocation(address)
        if found is None or self.region_count >= len(self.regions):
            return 0
        number = self._add_allocation(found)
        self.context[ContextField.REGION_COUNT] = self.region_count
        return number

    def _classify_parameters(self) -> np.ndarray:
        """Find the region that each 8 bytes of the parameters point into.

        A pointer without one (`find_targets`) is checked against the tensor at each address.
        """
        slots = np.zeros(_CLASSIFIED_BYTES // 8, dtype=np.int64)
        launch = self.launch
        offsets = range(0, len(launch.parameters) - 7, 8)
        targets = find_targets(
            offsets, launch.parameters, launch.allocations, launch.find_allocation
        )
        for offset, target in targets.items():
            if target not in self.allocations:
                self._add_allocation(target)
            slots[offset // 8] = self.allocations.index(target)
        return slots

    # The context

    def _fill_context(self, variable_addresses: Sequence[int], thread_function: int) -> None:
        launch, lowered = self.launch, self.lowered
        frames = self._make_frames()
        parameters = np.frombuffer(launch.parameters + bytes(16), dtype=np.uint8).copy()
        slots = self._classify_parameters()
        variables = np.array([*variable_addresses, 0], dtype=np.uint64)
        barriers = np.zeros((BARRIER_COUNT, len(BarrierField)), dtype=np.int64)
        self.ran_flags = np.zeros(len(lowered.block_lines) + 1, dtype=np.uint8)
        width, height, _ = launch.grid
        ordinals = [x + width * (y + height * z) for x, y, z in launch.chosen_blocks]
        chosen = np.array([*ordinals, 0], dtype=np.int64)
        self.extents = np.zeros(len(lowered.sites) + 1, dtype=np.int64)
        self._arrays += [parameters, slots, variables, barriers, chosen]
        exchanges, _ = BUFFERS.reserve("exchanges", self.threads * EXCHANGE_BYTES)
        values = {
            ContextField.GRID_X: launch.grid[0],
            ContextField.GRID_Y: launch.grid[1],
            ContextField.GRID_Z: launch.grid[2],
            ContextField.BLOCK_X: launch.block[0],
            ContextField.BLOCK_Y: launch.block[1],
            ContextField.BLOCK_Z: launch.block[2],
            ContextField.THREADS: self.threads,
            ContextField.THREAD_FUNCTION: thread_function,
            ContextField.FRAMES: frames,
            ContextField.FRAME_SIZE: lowered.frame_size,
            ContextField.LOCALS: self.locals,
            ContextField.LOCAL_SIZE: lowered.local_size,
            ContextField.EXCHANGES: exchanges,
            ContextField.PARAMETERS: parameters.ctypes.data,
            ContextField.PARAMETER_REGIONS: slots.ctypes.data,
            ContextField.SHARED: self.shared,
            ContextField.SHARED_SIZE: self.shared_size,
            ContextField.VARIABLES: variables.ctypes.data,
            ContextField.REGIONS: self.regions.ctypes.data,
            ContextField.REGION_COUNT: self.region_count,
            ContextField.REPORT: self.report.ctypes.data,
            ContextField.FIND_REGION: ctypes.cast(self._find, ctypes.c_void_p).value or 0,
            ContextField.EPOCH: BUFFERS.epoch,
            ContextField.LAUNCH_EPOCH: BUFFERS.epoch,
            ContextField.BARRIERS: barriers.ctypes.data,
            ContextField.SHARED_SHADOW: self.shadows.shared_uninitialized,
            ContextField.COPIES: self.shadows.copies,
            ContextField.UNORDERED_BLOCKS: int(not lowered.blocks_synchronize),
            ContextField.DYNAMIC_SHARED: launch.shared_bytes,
            ContextField.OVERFLOWS: self.overflows.ctypes.data,
            ContextField.CHOSEN: chosen.ctypes.data,
            ContextField.CHOSEN_COUNT: len(launch.chosen_blocks),
            ContextField.EXTENTS: self.extents.ctypes.data if launch.chosen_blocks else 0,
            ContextField.RAN_FLAGS: self.ran_flags.ctypes.data,
        }
        for field, value in values.items():
            self.context[field] = int(value)

    def finish(self) -> None:
        BUFFERS.epoch = int(self.context[ContextField.EPOCH]) + 1

    def _make_frames(self) -> int:
        launch, size = self.launch, self.lowered.frame_size
        address, frames = BUFFERS.reserve("frames", self.threads * size)
        local_size = self.lowered.local_size
        self.locals, _ = BUFFERS.reserve("locals", self.threads * local_size + 64, 256)
        table = frames.view(np.int64).reshape(self.threads, size // 8)
        numbers = np.arange(self.threads)
        width, height, _ = launch.block
        table[:, FrameField.TID_X] = numbers % width
        table[:, FrameField.TID_Y] = numbers // width % height
        table[:, FrameField.TID_Z] = numbers // (width * height)
        table[:, FrameField.THREAD] = numbers
        table[:, FrameField.LOCAL] = self.locals + numbers * local_size
        table[:, FrameField.KIND] = 0
        return address
