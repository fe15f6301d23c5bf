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
_FILLS = (
    0x00,
    0x3F,
    0x5F,
)  # a byte each: in every format of floats a zero, one near 1, a large one
_MAX_BYTES = 1 << 28


def _view_bytes(address: int, size: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class RepeatedLaunch:
    """The memory of a launch's parameters as it was before the launch."""

    def __init__(self, storages: Iterable[TrackedStorage]) -> None:
        self._memory = []
        for storage in storages:
            self._memory.append(_view_bytes(storage.start, storage.size))
            if storage.uninitialized is not None:
                marks = _view_bytes(storage.uninitialized.data_ptr(), storage.size)
                self._memory.append(marks)
        self._marked = [storage.uninitialized is not None for storage in storages]
        self._before = self._copy()

    def _copy(self) -> list[Any]:
        return [memory.copy() for memory in self._memory]

    def _restore(self, contents: list[Any]) -> None:
        for memory, known in zip(self._memory, contents, strict=True):
            memory[:] = known

    def _pair_memory(self) -> Iterable[tuple[Any, Any]]:
        """Yield each storage's bytes with their marks, or None."""
        parts = iter(self._memory)
        for has_marks in self._marked:
            yield next(parts), next(parts) if has_marks else None

    def has_same_results(self, launch: Callable[[], bool]) -> bool:
        """Launch again with each fill; `launch` returns whether the reports were the same ones."""
        after, results = self._copy(), []
        try:
            for fill in _FILLS:
                self._restore(self._before)
                for data, marks in self._pair_memory():
                    if marks is not None:
                        data[marks != 0] = fill
                if not launch():
                    return False
                results.append(
                    [
                        data.copy() if marks is None else np.where(marks, 0, data)
                        for data, marks in self._pair_memory()
                    ]
                )
        finally:
            self._restore(after)
        first, *others = results
        return all(
            np.array_equal(data, known)
            for result in others
            for data, known in zip(result, first, strict=True)
        )


def keep_memory(
    lowered: LoweredKernel, spans: Iterable[TensorSpan | None]
) -> RepeatedLaunch | None:
    """Copy the memory of a launch that may read what is uninitialized, if it can be repeated."""
    known = {place: span.storage for place, span in enumerate(spans) if span is not None}
    empty = {
        storage.start
        for place in lowered.read_sizes
        if (storage := known.get(place)) and _has_marks(storage)
    }
    if not empty or lowered.has_unknown_pointers or "@dprintf(" in lowered.text:
        return None
    storages = {
        storage.start: storage
        for place, storage in known.items()
        if place in lowered.write_sizes or _has_marks(storage)
    }.values()
    if sum(storage.size for storage in storages) > _MAX_BYTES:
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


def _has_marks(storage: TrackedStorage) -> bool:
    marks = storage.uninitialized
    return marks is not None and bool(_view_bytes(marks.data_ptr(), storage.size).any())
