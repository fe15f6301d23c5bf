"""The tables of one launch on the CPU: the memory that each pointer may reach, and its shadows.

The shadows of writers and readers hold a program's number for each element, and are valid for one
launch. All launches use one mapping and nothing clears it: programs are numbered through all
launches, and a number below the launch's first one is from an earlier launch. Example: a launch of
4 programs numbers them 101 to 104; an element whose writer is 97 has not been written in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils._python_dispatch

from harness.sanitizer.check.tracked_memory import AccessRule, ProgramId, TensorSpan, TrackedStorage
from harness.sanitizer.cpu.abi import RegionField
from harness.sanitizer.cpu.lowering import LoweredKernel
from harness.sanitizer.device.memory import map_zero_bytes

_SHARED_BYTES = 1 << 30  # bytes of address space; only touched pages take memory
_EMPTY_REGION = (0,) * len(RegionField)
_UNBOUNDED_REGION = (0, (1 << 63) - 1, 0, (1 << 63) - 1, *_EMPTY_REGION[4:])  # no shadows beside it


class ShadowMemory:
    """Shadow memory: a program's number for each element that the launch accesses."""

    def __init__(self) -> None:
        self._mapping = map_zero_bytes(_SHARED_BYTES)
        self._start = int(self._mapping.data_ptr())
        self._used = 0
        self._large_mappings: list[Any] = []

    def begin_launch(self) -> None:
        self._used = 0
        self._large_mappings.clear()

    def allocate_shadow(self, storage: TrackedStorage, granule: int) -> int:
        """Allocate a number for each granule of the storage, and return the address."""
        size = ((storage.size >> granule) + 2) * 8
        if size > _SHARED_BYTES - self._used:
            mapping = map_zero_bytes(size)
            self._large_mappings.append(mapping)
            return int(mapping.data_ptr())
        address = self._start + self._used
        self._used += size + -size % 64
        return address


class RaceShadows(NamedTuple):
    """The shadows of writers and of readers, which have different formats (`cpu.abi`)."""

    writers: ShadowMemory
    readers: ShadowMemory


@dataclass(slots=True)
class StorageUse:
    """How a storage is used in one launch."""

    access_sizes: set[int] = field(default_factory=set)
    is_read: bool = False
    is_written: bool = False


class RegionTables:
    """The regions of one launch: those of its parameters, and those of all tracked storages."""

    def __init__(
        self,
        lowered: LoweredKernel,
        spans: Sequence[TensorSpan | None],
        list_known_storages: Callable[[], Iterable[TrackedStorage]] | None,
        program_count: int,
        get_program: Callable[[int], ProgramId],
        shadows: RaceShadows,
    ) -> None:
        """`get_program`: the coordinates of a program by its position in the launch."""
        for shadow in shadows:
            shadow.begin_launch()
        self._lowered, self._spans, self._shadows = lowered, spans, shadows
        self._program_count, self._get_program = program_count, get_program
        self._referenced_arrays: list[Any] = []  # their addresses are in the tables
        self._fields_by_storage: dict[int, tuple[int, ...]] = {}
        self._uses = self._collect_uses()
        self.parameter_regions: list[int] = []
        for span in spans:
            self.parameter_regions += _EMPTY_REGION if span is None else self._make_region(span)
        self.known_storages: list[TrackedStorage] = []
        if list_known_storages is not None and lowered.has_unknown_pointers:
            self.known_storages = list(list_known_storages())
        self.storage_regions: list[int] = []
        if list_known_storages is None:
            self.storage_regions += _UNBOUNDED_REGION
        for storage in self.known_storages:
            self.storage_regions += [storage.start, storage.end, *self._get_shared_fields(storage)]

    def _collect_uses(self) -> dict[int, StorageUse]:
        """Collect the use of each storage by all parameters that point into it."""
        uses: dict[int, StorageUse] = {}
        for place, span in enumerate(self._spans):
            if span is None:
                continue
            use = uses.setdefault(span.storage.start, StorageUse())
            reads, writes = (
                sizes.get(place, ())
                for sizes in (self._lowered.read_sizes, self._lowered.write_sizes)
            )
            use.access_sizes |= {*reads, *writes}
            use.is_read |= bool(reads)
            use.is_written |= bool(writes)
        return uses

    def _make_region(self, span: TensorSpan) -> tuple[int, ...]:
        return (span.start, span.end, *self._get_shared_fields(span.storage))

    def _get_shared_fields(self, storage: TrackedStorage) -> tuple[int, ...]:
        """Return the fields that all regions of one storage share."""
        if storage.start not in self._fields_by_storage:
            self._fields_by_storage[storage.start] = self._make_shared_fields(storage)
        return self._fields_by_storage[storage.start]

    def _make_shared_fields(self, storage: TrackedStorage) -> tuple[int, ...]:
        use = self._uses.get(storage.start, StorageUse())
        may_point_anywhere = self._lowered.has_unknown_pointers
        written, read = use.is_written or may_point_anywhere, use.is_read or may_point_anywhere
        granule = (
            0
            if may_point_anywhere or not use.access_sizes
            else min(use.access_sizes).bit_length() - 1
        )
        writers = readers = 0
        if written and self._program_count > 1:
            writers = self._shadows.writers.allocate_shadow(storage, granule)
            if read and not (
                self._lowered.uses_atomic_results or self._lowered.has_unseen_synchronization
            ):
                readers = self._shadows.readers.allocate_shadow(storage, granule)
        uninitialized = storage.uninitialized
        return (
            storage.start,
            storage.size,
            0 if uninitialized is None else uninitialized.data_ptr(),
            writers,
            readers,
            granule,
            self._make_rule_table(storage, "read"),
            self._make_rule_table(storage, "write"),
        )

    def _make_rule_table(self, storage: TrackedStorage, access: str) -> int:
        """Return the address of a table with a mask's address per program; 0 allows everything."""
        rules = [rule for rule in storage.access_rules if rule.get_rule(access) is not None]
        if not rules:
            return 0
        with torch.utils._python_dispatch._disable_current_modes():
            programs = list(map(self._get_program, range(self._program_count)))
            for rule in rules:
                rule.compute_masks(access, programs, storage)
            masks = [self._combine_masks(rules, access, program, storage) for program in programs]
        table = np.array(masks, dtype=np.uint64)
        self._referenced_arrays.append(table)
        return int(table.ctypes.data)

    def _combine_masks(
        self, rules: list[AccessRule], access: str, program: ProgramId, storage: TrackedStorage
    ) -> int:
        masks = [
            mask
            for rule in rules
            if (mask := rule.get_allowed_bytes(access, program, storage)) is not None
        ]
        if not masks:
            return 0
        mask = masks[0]
        if len(masks) > 1:
            mask = np.bitwise_and.reduce(masks)
            self._referenced_arrays.append(mask)
        return int(mask.ctypes.data)
