"""Kernels with checks written into their PTX, run on this CPU; their reports as violations."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
from ptx_kernels import describe_array

from harness.sanitizer.cuda.card_facts import CardLaunch
from harness.sanitizer.gpu.report_assembly import (
    KERNEL_TABLE_BYTES,
    MAX_SITES,
    RECORDS_PER_SITE,
    KernelTable,
)
from harness.sanitizer.gpu.report_buffer import RECORD_DTYPE, DeviceReport, read_record
from harness.sanitizer.gpu.shadow_entries import SLOTS_PER_TABLE, ShadowTable
from harness.sanitizer.ptx.check_values import make_checked_parameters
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.instrumentation import InstrumentedPtx, instrument_module
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, Dimensions, ExecutorChecks
from harness.sanitizer.violations.exceptions import Violation

_BOUNDS_ALONE = ExecutorChecks(overflow=False, uninitialized=False, races=False)


@functools.cache
def instrument_text(text: str, checks: tuple[str, ...] = ("bounds", "overflow")) -> InstrumentedPtx:
    return instrument_module(text, checks)


class ReportMemory:
    """A kernel's table, its records and the bell, where a GPU's kernels write them; and shadows."""

    def __init__(self) -> None:
        self.launch_number = np.full(1, 9, np.int64)
        self.shadows = np.zeros(len(ShadowTable) * SLOTS_PER_TABLE, np.int64)  # touched pages alone
        self.table = np.zeros(KERNEL_TABLE_BYTES // 8, np.int64)
        self.records = np.zeros(MAX_SITES * RECORDS_PER_SITE, RECORD_DTYPE)
        self.bell = np.zeros(1, np.int32)
        self.table[KernelTable.RECORDS // 8] = self.records.ctypes.data
        self.table[KernelTable.BELL // 8] = self.bell.ctypes.data

    def find(self, address: int) -> Allocation | None:
        parts = {"table": self.table, "records": self.records, "bell": self.bell}
        parts |= {"number": self.launch_number, "shadows": self.shadows}
        known = [describe_array(name, array) for name, array in parts.items()]
        return next((one for one in known if one.base <= address < one.end), None)

    @property
    def shadow_addresses(self) -> tuple[int, int]:
        return self.launch_number.ctypes.data, self.shadows.ctypes.data

    def read(self) -> list[DeviceReport]:
        return [read_record(record, 0) for record in self.records if record["written"]]


def launch_with_checks(
    text: str,
    parameters: bytes,
    tensors: dict[str, Any],
    grid: Dimensions = (1, 1, 1),
    block: Dimensions = (1, 1, 1),
    *,
    entry: str = "k",
    has_table: bool = True,
    checks: tuple[str, ...] = ("bounds", "overflow"),
    mapped: dict[str, Any] | None = None,
    empty: Collection[str] | None = None,
) -> list[Violation]:
    """Run a kernel with checks, and return its reports; `mapped` is memory that exists besides.

    `empty`: the tensors from `torch.empty`; without it all are.
    """
    module, memory = instrument_text(text, checks), ReportMemory()
    kernel = module.kernels[entry]
    allocations = tuple(describe_array(name, array) for name, array in tensors.items())
    checked = make_checked_parameters(
        kernel,
        parameters,
        allocations,
        lambda _: None,
        memory.table.ctypes.data if has_table else 0,
        launch_number=7,
        shadow=memory.shadow_addresses if has_table else None,
        is_from_empty=lambda one: empty is None or one.name in empty,
    )
    end = max(offset + size for offset, size in kernel.parameter_layout)
    packed = parameters[:end] + bytes(-end % 8) + checked.data
    parts = {**tensors, **(mapped or {})}
    known = tuple(describe_array(name, array) for name, array in parts.items())
    launch = CudaLaunch(entry, entry, grid, block, 0, packed, known, memory.find)
    for error in load_module(module.text).run(launch, _BOUNDS_ALONE):
        raise error  # the access of the kernel itself was not skipped
    reports = memory.read()
    assert bool(memory.bell[0]) == bool(reports)
    assert all(report.launch == 7 for report in reports)
    card = CardLaunch(entry, kernel, checked.targets, "test")
    return [card.build_violation(report) for report in reports]
