"""The reports of checked kernels: records in pinned memory of the host, tables on the device.

The host polls one word, the bell, and reads records without any call to the device. So neither a
stream nor a graph capture notices, and the reports of a device that was lost are still there.
Example: with 768 tables of 128 sites and 4 records of 64 bytes, the records take 24 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.sanitizer.gpu.report_assembly import (
    KERNEL_TABLE_BYTES,
    MAX_SITES,
    RECORD_BYTES,
    RECORDS_PER_SITE,
    KernelTable,
    RecordField,
)
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY

MAX_KERNELS = 768
_KERNEL_RECORDS_BYTES = MAX_SITES * RECORDS_PER_SITE * RECORD_BYTES
_ALREADY_READ = 2
RECORD_DTYPE = np.dtype(
    {
        "names": "written sides launch address word site x y z thread left right".split(),
        "formats": "<u4 <u4 <i8 <u8 <u4 <u4 <u4 <u4 <u4 <u4 <i8 <i8".split(),
        "offsets": [int(field) for field in RecordField],
        "itemsize": RECORD_BYTES,
    }
)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """A record as the host reads it."""

    launch: int
    address: int
    word: int
    site: int
    table: int  # the kernel's table: its number on this device
    program: tuple[int, int, int]
    operands: tuple[int, int]  # an overflow's operands, or the storage's start and size + 1
    # Of CUDA's kernels: the thread's number in its block, and the block's sides.
    thread: int = 0
    block_sides: tuple[int, int] = (1, 1)


def read_record(record: Any, table: int) -> DeviceReport:
    """Read one record (of RECORD_DTYPE) of a kernel's table."""

    def read_fields(*names: str) -> tuple[int, ...]:
        return tuple(int(record[name]) for name in names)

    x, y, z = read_fields("x", "y", "z")
    left, right = read_fields("left", "right")
    thread, sides = read_fields("thread", "sides")
    launch, address, word, site = read_fields("launch", "address", "word", "site")
    program, block_sides = (x, y, z), (sides & 0xFFFF, sides >> 16)
    return DeviceReport(
        launch, address, word, site, table, program, (left, right), thread, block_sides
    )


class ReportBuffer:
    """The reports of one device; to be made outside a capture."""

    def __init__(self, device: int) -> None:
        self._bell = torch.zeros(16, dtype=torch.int32).pin_memory()
        self._records = torch.zeros(
            MAX_KERNELS * _KERNEL_RECORDS_BYTES, dtype=torch.uint8
        ).pin_memory()
        blocks = np.zeros((MAX_KERNELS, KERNEL_TABLE_BYTES // 8), dtype=np.int64)
        blocks[:, 0] = self._records.data_ptr() + np.arange(MAX_KERNELS) * _KERNEL_RECORDS_BYTES
        blocks[:, 1] = self._bell.data_ptr()
        self._storage_table = torch.from_numpy(STORAGE_REGISTRY.to_table()).to(f"cuda:{device}")
        blocks[:, 2] = self._storage_table.data_ptr()
        self._uploaded_changes = 0  # changes of the storage registry
        self._initial_tables = torch.from_numpy(blocks)
        self._tables = self._initial_tables.to(f"cuda:{device}")
        self._bell_view = self._bell.numpy()
        self._record_view = (
            self._records.numpy()
            .view(RECORD_DTYPE)
            .reshape(MAX_KERNELS, MAX_SITES * RECORDS_PER_SITE)
        )
        self._tables_used = 0

    def allocate_table(self) -> int | None:
        """Return the address of a table for one more kernel; None if none is left."""
        if self._tables_used == MAX_KERNELS:
            return None
        self._tables_used += 1
        return int(self._tables.data_ptr()) + (self._tables_used - 1) * KERNEL_TABLE_BYTES

    def upload_storage_table(self) -> None:
        """Copy the known storages to the device, before the next launch."""
        if self._uploaded_changes != STORAGE_REGISTRY.change_count:
            self._uploaded_changes = STORAGE_REGISTRY.change_count
            self._storage_table.copy_(
                torch.from_numpy(STORAGE_REGISTRY.to_table()), non_blocking=True
            )

    def has_reports(self) -> bool:
        return bool(self._bell_view[0])

    def read_new_reports(self) -> list[DeviceReport]:
        """Read the reports since the last call."""
        self._bell_view[0] = 0
        read = self._record_view[: self._tables_used]
        reports = []
        for position in np.argwhere(read["written"] == 1):
            reports.append(read_record(read[tuple(position)], int(position[0])))
            read["written"][tuple(position)] = _ALREADY_READ
        return reports

    def count_further_reports(self) -> list[int]:
        """Return, for each table, the reports of sites whose records were full; waits."""
        words = self._tables[: self._tables_used].cpu().numpy().view(np.uint8)
        counts = words[:, KernelTable.COUNTS :].copy().view(np.uint32).astype(np.int64)
        return [int(count) for count in np.maximum(counts - RECORDS_PER_SITE, 0).sum(axis=1)]

    def reset(self) -> None:
        """Forget all reports and counts; the caller has waited for the device."""
        self._record_view["written"] = 0
        self._tables.copy_(self._initial_tables)
