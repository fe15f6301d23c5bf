"""Whether a read of uninitialized memory changes what its launch computes.

A launch that has read such memory runs again from where it began, with other numbers in it. If each
time all memory that is initialized afterwards is the same, the lanes that read are masked, or
multiplied by zero: the report is a warning. Example: `0 * y + x` with `y` from `torch.empty`; with
`1 * y + x` the results differ. The numbers are finite, as a card's memory mostly is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from harness.sanitizer.check.tracked_memory import TensorSpan, TrackedStorage
from harness.sanitizer.cpu.abi import ReportField
from harness.sanitizer.cpu.lowering import LoweredKernel
from harness.sanitizer.violations.kinds import ViolationKind

HARMLESS_READ = "a warning: each result is the same, whatever finite numbers that memory holds"
# A byte each: in every format of floats a zero, one near 1, a large one, and both negative.
_FILLS = (0x00, 0x3F, 0x5F, 0xBF, 0xDF)
_MAX_BYTES = 1 << 24


def _view_bytes(address: int, size: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class RepeatedLaunch:
    """The memory of a launch's parameters as it was before the launch."""

    def __init__(self, storages: Iterable[TrackedStorage]) -> None:
        self._memory = [(_view_bytes(one.start, one.size), _view_marks(one)) for one in storages]
        self._before = self._copy()

    def _copy(self) -> list[tuple[Any, Any]]:
        return [(data.copy(), marks.copy()) for data, marks in self._memory]

    def _restore(self, contents: list[tuple[Any, Any]]) -> None:
        for (data, marks), (known_data, known_marks) in zip(self._memory, contents, strict=True):
            data[:], marks[:] = known_data, known_marks

    def has_same_results(self, launch: Callable[[], bool]) -> bool:
        """Launch again with each fill; `launch` returns whether the reports were the same ones."""
        after, results = self._copy(), set()
        try:
            for fill in _FILLS:
                self._restore(self._before)
                for data, marks in self._memory:
                    data[marks != 0] = fill
                if not launch():
                    return False
                known = [np.where(marks, 0, data).tobytes() for data, marks in self._memory]
                results.add(b"".join(known))
        finally:
            self._restore(after)
        return len(results) == 1


def keep_memory(
    lowered: LoweredKernel, spans: Iterable[TensorSpan | None]
) -> RepeatedLaunch | None:
    """Copy the memory of a launch that may read what is uninitialized, if it can be repeated."""
    known = {place: span.storage for place, span in enumerate(spans) if span is not None}
    storages = {  # without those that are only read: their memory may be read-only
        one.start: one
        for place, one in known.items()
        if place in lowered.write_sizes or one.uninitialized is not None
    }.values()
    is_large = sum(storage.size for storage in storages) > _MAX_BYTES
    if is_large or lowered.has_unknown_pointers or "@dprintf(" in lowered.text:
        return None
    read = (known[place] for place in lowered.read_sizes if place in known)
    if not any(one.uninitialized is not None and _view_marks(one).any() for one in read):
        return None
    return RepeatedLaunch([*storages])


def is_harmless_read(
    kept: RepeatedLaunch | None,
    reports: list[list[int]],
    max_reports: int,
    run: Callable[[], list[list[int]]],
) -> bool:
    """Return whether the launch read uninitialized memory, and computes the same without it."""
    kinds = [report[ReportField.KIND] for report in reports]
    if kept is None or len(reports) >= max_reports:
        return False
    if ViolationKind.UNINITIALIZED_READ not in kinds:
        return False
    return kept.has_same_results(lambda: [each[ReportField.KIND] for each in run()] == kinds)


def _view_marks(storage: TrackedStorage) -> Any:
    """View a storage's marks of uninitialized bytes; zeros where it has none."""
    marks = storage.uninitialized
    if marks is None:
        return np.zeros(storage.size, dtype=np.uint8)
    return _view_bytes(marks.data_ptr(), storage.size)
