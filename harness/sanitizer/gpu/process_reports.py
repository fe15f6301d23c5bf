"""The reports of a process's checked kernels, each with the launch that it is about.

Invariant: a report that a kernel wrote is read or counted. Launches are forgotten in their order,
since a server makes millions; a report of a forgotten one has no arguments to show, but its table
says which kernel wrote it. Example: 16,385 launches behind a bad one of `fill`, its report is read:
`count_dropped()` returns {("fill", "ops/fill.py:12"): 1}.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from harness.sanitizer.gpu.pointer_arguments import PointerArgument
from harness.sanitizer.gpu.report_buffer import DeviceReport, ReportBuffer
from harness.sanitizer.gpu.shadow_memory import RaceShadowMemory

_MAX_REMEMBERED_LAUNCHES = 1 << 14  # besides those that a graph captured, which all stay


@dataclass(slots=True)
class LaunchRecord:
    """A launch as a report needs it; it holds no tensor, and nothing that holds one."""

    kernel: str
    pointers: tuple[PointerArgument, ...]
    scalars: dict[str, Any]
    captured: bool
    server_phase: str  # in a server: the forward mode and batch
    compiled_kernel: Any = None  # None until the launch has returned
    inductor_source: str = ""  # the function that Inductor compiled, if this is Inductor's
    # Of a kernel that is not Triton's: makes a report's violation.
    build_violation: Callable[[DeviceReport], Any] | None = None

    def __str__(self) -> str:
        words = [*map(str, self.pointers), *(f"{k} {v}" for k, v in self.scalars.items())]
        return ", ".join(words)


class ProcessReports:
    """The process's reports and launches, shared by all launchers: kernels keep their tables."""

    def __init__(self) -> None:
        self._buffers: dict[int, ReportBuffer] = {}
        self._shadow_memories: dict[int, RaceShadowMemory] = {}
        self._launch_numbers = itertools.count(1)
        self._launch_records: dict[int, LaunchRecord] = {}
        self._eviction_order: deque[int] = deque()
        self._table_kernels: dict[int, list[tuple[str, str]]] = {}  # by device: a kernel a table
        self._dropped: Counter[tuple[str, str]] = Counter()

    def allocate_table(self, device: int, kernel: str, place: str) -> int | None:
        """Return the address of a table for a kernel's reports; None if there is no room."""
        if device not in self._buffers:
            if torch.cuda.is_current_stream_capturing():
                return None
            self._buffers[device] = ReportBuffer(device)
        table = self._buffers[device].allocate_table()
        if table is not None:
            self._table_kernels.setdefault(device, []).append((kernel, place))
        return table

    def upload_storage_table(self, device: int) -> None:
        if not torch.cuda.is_current_stream_capturing():  # a replay reads the table as it is then
            self._buffers[device].upload_storage_table()

    def begin_launch(self, device: int, run: Any) -> tuple[int, int] | None:
        """Return the next launch's shadow memory; None in a capture before the device has one."""
        captured = torch.cuda.is_current_stream_capturing()
        if device not in self._shadow_memories:
            if captured:
                return None
            self._shadow_memories[device] = RaceShadowMemory(f"cuda:{device}")
        return self._shadow_memories[device].begin_launch(run, captured)

    def remember_launch(self, record: LaunchRecord) -> int:
        number = next(self._launch_numbers)
        self._launch_records[number] = record
        if not record.captured:
            self._eviction_order.append(number)
            if len(self._eviction_order) > _MAX_REMEMBERED_LAUNCHES:
                self._launch_records.pop(self._eviction_order.popleft(), None)
        return number

    def read_new_reports(self) -> Iterator[tuple[DeviceReport, LaunchRecord]]:
        """Yield the reports since the last call, each with its launch; count the others."""
        for device, buffer in self._buffers.items():
            if buffer.has_reports():
                for report in buffer.read_new_reports():
                    record = self._launch_records.get(report.launch)
                    if record is None:
                        self._dropped[self._table_kernels[device][report.table]] += 1
                    else:
                        yield report, record

    def count_dropped(self) -> Counter[tuple[str, str]]:
        """Return how many reports had no known launch, by the kernel's name and place."""
        return Counter(self._dropped)

    def count_further_reports(self) -> Counter[tuple[str, str]]:
        """Return how many reports only add to those of a line that has its records; waits."""
        further: Counter[tuple[str, str]] = Counter()
        for device, buffer in self._buffers.items():
            kernels = self._table_kernels.get(device, [])
            for kernel, count in zip(kernels, buffer.count_further_reports(), strict=True):
                further[kernel] += count
        return further

    def reset(self) -> None:
        self._dropped.clear()
        for buffer in self._buffers.values():
            buffer.reset()


PROCESS_REPORTS = ProcessReports()
