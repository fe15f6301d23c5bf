"""The shadows of one launch: accesses for races, uninitialized bytes, masks of access rules.

Nothing is cleared between launches: an entry's epoch says which launch it is from.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from harness.sanitizer.device.memory import map_zero_bytes
from harness.sanitizer.ptx.abi import PtxRegionField, RegionSpace
from harness.sanitizer.ptx.copy_checks import GRANULE_BITS
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks
from harness.sanitizer.ptx.lowering import LoweredPtx

_POOL_BYTES = 1 << 32  # of address space; only touched pages take memory


class ShadowPool:
    """Two mappings that all launches of a process share, for writers and for readers."""

    def __init__(self) -> None:
        self._mappings = [map_zero_bytes(_POOL_BYTES) for _ in range(2)]
        self._used = 0
        self._large: list[Any] = []

    def begin_launch(self) -> None:
        self._used = 0
        self._large.clear()

    def allocate(self, entries: int) -> tuple[int, int]:
        """Return the addresses of a table of writers and of one of readers."""
        size = entries * 8 + 64
        if size > _POOL_BYTES - self._used:
            large = [map_zero_bytes(size) for _ in range(2)]
            self._large += large
            return int(large[0].data_ptr()), int(large[1].data_ptr())
        start = self._used
        self._used += size + -size % 64
        writers, readers = (int(mapping.data_ptr()) + start for mapping in self._mappings)
        return writers, readers


@functools.cache
def get_pool() -> ShadowPool:
    return ShadowPool()


class LaunchShadows:
    def __init__(self, launch: CudaLaunch, lowered: LoweredPtx, checks: ExecutorChecks) -> None:
        self._launch, self._checks = launch, checks
        self._copies_to_shared = lowered.copies_to_shared
        self._granule = _smallest_exponent(lowered.access_sizes)
        self._shared_granule = _smallest_exponent(lowered.shared_access_sizes)
        self._arrays: list[Any] = []  # arrays whose addresses are in the regions
        self.shared_uninitialized = 0
        self.copies = 0  # the table of asynchronous copies into shared memory
        self._clusters: list[tuple[int, int, int, int]] = []  # start, end, writers, readers
        if checks.races:
            get_pool().begin_launch()
            self._cluster_allocations()

    def _cluster_allocations(self) -> None:
        """Give tensors that overlap the same shadow."""
        for allocation in sorted(self._launch.allocations, key=lambda tensor: tensor.base):
            if self._clusters and allocation.base < self._clusters[-1][1]:
                start, end, *_ = self._clusters.pop()
                end = max(end, allocation.end)
            else:
                start, end = allocation.base, allocation.end
            self._clusters.append((start, end, 0, 0))
        self._clusters = [self._open_cluster(start, end) for start, end, *_ in self._clusters]

    def _open_cluster(self, start: int, end: int) -> tuple[int, int, int, int]:
        start -= start % 16  # a granule never lies in two clusters
        return start, end, *get_pool().allocate(((end - start) >> self._granule) + 2)

    def open_shared(self, start: int, size: int) -> None:
        self._shared = start
        self._shared_shadow = (0, 0)
        if self._checks.races and size:
            self._shared_shadow = get_pool().allocate((size >> self._shared_granule) + 2)
        if self._checks.races and self._copies_to_shared and size:
            table = np.zeros((size >> GRANULE_BITS) + 4, dtype=np.uint64)
            self._arrays.append(table)
            self.copies = int(table.ctypes.data)
        if self._checks.uninitialized and size:
            shadow = np.ones(size + 16, dtype=np.uint8)
            self._arrays.append(shadow)
            self.shared_uninitialized = int(shadow.ctypes.data)

    def fill_region(self, row: Any, space: RegionSpace, allocation: Allocation | None) -> None:
        """Fill the fields of a region that are about its shadows."""
        if space == RegionSpace.SHARED:
            self._fill_shared(row)
        elif space == RegionSpace.GLOBAL:
            self._fill_global(row, allocation)

    def _fill_shared(self, row: Any) -> None:
        writers, readers = self._shared_shadow
        row[PtxRegionField.STORAGE] = self._shared
        row[PtxRegionField.WRITERS], row[PtxRegionField.READERS] = writers, readers
        row[PtxRegionField.GRANULE_BITS] = self._shared_granule
        if self.shared_uninitialized:
            offset = int(row[PtxRegionField.START]) - self._shared
            row[PtxRegionField.UNINITIALIZED] = self.shared_uninitialized + offset

    def _fill_global(self, row: Any, allocation: Allocation | None) -> None:
        start, end = int(row[PtxRegionField.START]), int(row[PtxRegionField.END])
        if self._checks.races:
            cluster = next(
                (span for span in self._clusters if span[0] <= start and end <= span[1]), None
            )
            if cluster is None:
                cluster = self._open_cluster(start, end)
                self._clusters.append(cluster)
            row[PtxRegionField.STORAGE] = cluster[0]
            row[PtxRegionField.WRITERS], row[PtxRegionField.READERS] = cluster[2:]
            row[PtxRegionField.GRANULE_BITS] = self._granule
        if allocation is None:
            return
        if self._checks.uninitialized:
            row[PtxRegionField.UNINITIALIZED] = allocation.uninitialized
        row[PtxRegionField.READ_RULES] = self._make_rule_table(allocation.allowed_reads)
        row[PtxRegionField.WRITE_RULES] = self._make_rule_table(allocation.allowed_writes)

    def _make_rule_table(self, rule: Any) -> int:
        """Return the address of a mask's address for each block; 0 if all may do everything."""
        if rule is None:
            return 0
        width, height, depth = self._launch.grid
        blocks = itertools.product(range(depth), range(height), range(width))
        masks = [rule((x, y, z)) for z, y, x in blocks]
        arrays = [
            None if mask is None else np.ascontiguousarray(mask, dtype=np.uint8) for mask in masks
        ]
        table = np.array(
            [0 if array is None else int(array.ctypes.data) for array in arrays], dtype=np.uint64
        )
        self._arrays += [table, *arrays]
        return int(table.ctypes.data)


def _smallest_exponent(sizes: frozenset[int]) -> int:
    """Return the exponent of two of the smallest access."""
    return min(sizes, default=4).bit_length() - 1
