"""The access rules of a launch as lists of address intervals, which a GPU's kernels search."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from harness.sanitizer.check.guard_zones import MAX_COPY_BYTES
from harness.sanitizer.check.launch_log import KernelLaunch
from harness.sanitizer.check.tracked_memory import MemoryTracker, ProgramId, TrackedStorage
from harness.sanitizer.gpu import access_rules
from harness.sanitizer.gpu.pointer_arguments import PointerArgument
from harness.sanitizer.violations.exceptions import UncheckableKernel

MAX_PROGRAMS = 1 << 20  # programs


class DeviceRuleLists:
    """A launch's lists on the device, for as long as this object lives."""

    def __init__(self, launch: KernelLaunch, memory: MemoryTracker, device: str = "cuda") -> None:
        self._launch, self._device = launch, device
        self._storages = [storage for storage in memory.iterate_living() if storage.access_rules]
        self._table: Any = None
        self._intervals_by_storage: dict[
            tuple[int, str], list[access_rules.AddressIntervals] | None
        ] = {}

    def __call__(self, pointers: Sequence[PointerArgument]) -> int | None:
        storages = [self._find_ruled_storage(pointer) for pointer in pointers]
        if not any(storages):
            return None
        with _disable_current_modes():
            lists = [
                (None, None)
                if storage is None
                else (self._get_intervals(storage, "read"), self._get_intervals(storage, "write"))
                for storage in storages
            ]
            size = len(access_rules.build_rule_table(lists, 0))
            self._table = torch.empty(size, dtype=torch.int64, device=self._device)
            address = int(self._table.data_ptr())
            self._table.copy_(torch.from_numpy(access_rules.build_rule_table(lists, address)))
        return address

    def _find_ruled_storage(self, pointer: PointerArgument) -> TrackedStorage | None:
        containing = (
            storage for storage in self._storages if storage.start <= pointer.start < storage.end
        )
        return next(containing, None)

    def _get_intervals(
        self, storage: TrackedStorage, access: str
    ) -> list[access_rules.AddressIntervals] | None:
        if (storage.start, access) not in self._intervals_by_storage:
            self._intervals_by_storage[storage.start, access] = self._list_intervals(
                storage, access
            )
        return self._intervals_by_storage[storage.start, access]

    def _list_intervals(
        self, storage: TrackedStorage, access: str
    ) -> list[access_rules.AddressIntervals] | None:
        """List the intervals of each program; None where no access rule is about the storage."""
        rules = [rule.get_rule(access) for rule in storage.access_rules]
        if not any(rules):
            return None
        if self._launch.program_count >= MAX_PROGRAMS:
            raise UncheckableKernel(f"{self._launch}: too many programs for an access rule")
        if storage.size > MAX_COPY_BYTES:
            words = f"{storage.name} has {storage.size} bytes"
            raise UncheckableKernel(f"{words}: too many for an access rule")
        x, y, z = map(range, self._launch.grid)
        programs = itertools.product(x, y, z)
        return [self._compute_intervals(storage, access, program) for program in programs]

    def _compute_intervals(
        self, storage: TrackedStorage, access: str, program: ProgramId
    ) -> access_rules.AddressIntervals:
        masks = [
            rule.compute_union_mask(storage, (get_index(program),)).numpy()
            for rule in storage.access_rules
            if (get_index := rule.get_rule(access)) is not None
        ]
        allowed = np.bitwise_and.reduce(masks)
        ends = np.flatnonzero(np.diff(allowed, prepend=0, append=0)) + storage.start
        if len(ends) > 2 * access_rules.MAX_INTERVALS:
            raise UncheckableKernel(
                f"{self._launch}: an access rule of over {access_rules.MAX_INTERVALS} intervals"
            )
        return list(zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True))
