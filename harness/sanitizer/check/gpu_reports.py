"""Reports of checked kernels on a GPU as violations, with the messages of the CPU's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.sanitizer.check.tracked_memory import MemoryTracker, TensorSpan
from harness.sanitizer.check.violation_report import ViolationReport
from harness.sanitizer.check.violations import OutOfBounds, Violation
from harness.sanitizer.cpu.abi import REPORT_SIZE, ReportField, ViolationKind
from harness.sanitizer.cpu.scratch_values import OperationSite
from harness.sanitizer.gpu import compiler_hooks, report_buffer, storage_registry
from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES
from harness.sanitizer.gpu.pointer_arguments import PointerArgument
from harness.sanitizer.gpu.process_reports import LaunchRecord
from harness.sanitizer.gpu.program_grid import unpack_grid_shape, unravel_program
from harness.sanitizer.gpu.report_assembly import OVERFLOW_MASK, ReportBit
from harness.sanitizer.gpu.shadow_entries import FLAG_BITS, PROGRAM_BITS
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY
from harness.sanitizer.ir.graph import get_bit_count, wrap_integer

_VIOLATION_KINDS = {
    ReportBit.WRITE_WRITE_RACE: ViolationKind.WRITE_WRITE_RACE,
    ReportBit.ATOMIC_STORE_RACE: ViolationKind.ATOMIC_STORE_RACE,
    ReportBit.READ_AFTER_WRITE: ViolationKind.READ_AFTER_WRITE,
    ReportBit.WRITE_AFTER_READ: ViolationKind.WRITE_AFTER_READ,
    ReportBit.UNINITIALIZED_READ: ViolationKind.UNINITIALIZED_READ,
    ReportBit.ASSERTION_FAILED: ViolationKind.ASSERTION,
}


def violation_from_record(
    record: report_buffer.DeviceReport, launched: LaunchRecord, memory: MemoryTracker | None = None
) -> Violation | None:
    """Return a launch's report as a violation; an overflow counts before the access that it led to.

    `memory` has the access rules. None if the report is about memory that has been freed since.
    """
    if launched.build_violation is not None:
        built: Violation | None = launched.build_violation(record)
        return built
    numbers = [0] * REPORT_SIZE
    numbers[ReportField.SITE], numbers[ReportField.ADDRESS] = record.site, record.address
    numbers[ReportField.X], numbers[ReportField.Y], numbers[ReportField.Z] = record.program
    sites = compiler_hooks.load_sites(launched.compiled_kernel, "sites")
    spans = [_span_from_pointer(pointer, memory) for pointer in launched.pointers]
    number = record.word & OVERFLOW_MASK
    kind = next((kind for bit, kind in _VIOLATION_KINDS.items() if record.word & bit), None)
    argument = sites[record.site].argument
    if kind is ViolationKind.UNINITIALIZED_READ and not _was_uninitialized(
        record, launched, argument
    ):
        return None
    if argument is None and not number and kind is not ViolationKind.ASSERTION:
        span = _find_span(record.address, spans) if kind else _find_pointed_span(record, spans)
        if span is None:
            return None
        sites[record.site] = replace(sites[record.site], argument=len(spans))
        spans.append(span)
    numbers[ReportField.KIND] = kind or 0
    grid = (0, 0, 0)
    if kind not in (None, ViolationKind.UNINITIALIZED_READ, ViolationKind.ASSERTION):
        entry, sides = record.operands
        grid = unpack_grid_shape(sides)
        numbers[ReportField.OTHER] = entry >> FLAG_BITS & ((1 << PROGRAM_BITS) - 1)
    report = _GpuViolationReport(
        launched.kernel,
        tuple(numbers),
        tuple(sites),
        tuple(spans),
        None,
        memory or MemoryTracker(),
        lambda number: unravel_program(number, grid),
        launched,
    )
    if kind is not None:
        return report.build_violation()  # type: ignore[return-value]
    if record.word & (ReportBit.FORBIDDEN_READ | ReportBit.FORBIDDEN_WRITE):
        return report.build_rule_violation_inside(
            "write" if record.word & ReportBit.FORBIDDEN_WRITE else "read"
        )
    if not number:
        return report.to_first_outside().build_out_of_bounds()
    site = compiler_hooks.load_sites(launched.compiled_kernel, "overflows")[number - 1]
    return report.build_overflow_at(site, *_recompute_overflow(site, *record.operands))


def _was_uninitialized(
    record: report_buffer.DeviceReport, launched: LaunchRecord, argument: int | None
) -> bool:
    """Return whether the memory was made by `torch.empty`, so that the poison's pattern counts."""
    if argument is not None:
        return launched.pointers[argument].made_empty
    storage = STORAGE_REGISTRY.find_containing(record.address)
    return storage is not None and EMPTY_STORAGES.contains(storage.start)


def _find_span(address: int, spans: list[TensorSpan]) -> TensorSpan | None:
    if span := next((span for span in spans if span.start <= address < span.end), None):
        return span
    storage = STORAGE_REGISTRY.find_containing(address)
    return None if storage is None else _span_from_storage(storage)


def _find_pointed_span(
    record: report_buffer.DeviceReport, spans: list[TensorSpan]
) -> TensorSpan | None:
    """Find the memory of a pointer that came from no single argument, if it is known."""
    start, size = record.operands
    for span in spans:
        if (span.start, span.end - span.start + 1) == (start, size):
            return span
    storage = STORAGE_REGISTRY.find_starting_at(start)
    return None if storage is None or storage.size + 1 != size else _span_from_storage(storage)


def _span_from_storage(known: storage_registry.DeviceStorage) -> TensorSpan:
    storage: Any = None
    return TensorSpan(
        known.name, known.start, known.end, known.itemsize, known.shape, known.dtype, storage
    )


def _recompute_overflow(site: OperationSite, left: int, right: int) -> tuple[int, int, int]:
    """Return the operands and the result of an overflow, each cut to its type's bits."""
    signed, element = site.element[0] != "u", site.element.removeprefix("u")
    bits = get_bit_count(element)
    if site.label in ("narrowed", "sum"):
        left, right = wrap_integer(left, 64, signed), 0
        return left, right, wrap_integer(left, bits, signed)
    left = wrap_integer(left, bits, signed)
    right = wrap_integer(right, bits, signed and site.label != "<<")
    return left, right, wrap_integer(_OPERATORS[site.label](left, right), bits, signed)


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": lambda number, bits: number << min(bits, 64),
}


def _span_from_pointer(pointer: PointerArgument, memory: MemoryTracker | None) -> TensorSpan:
    end = pointer.start + pointer.reachable_bytes
    # The storage serves access rules alone.
    storage: Any = memory.find_living(pointer.start) if memory is not None else None
    return TensorSpan(
        pointer.name, pointer.start, end, pointer.itemsize, pointer.shape, pointer.dtype, storage
    )


@dataclass(frozen=True, slots=True)
class _GpuViolationReport(ViolationReport):
    launched: LaunchRecord

    def build_rule_violation_inside(self, access: str) -> Violation | None:
        """Build the violation; None outside of the storage, where the bounds check reports it."""
        storage = self._get_storage()
        return (
            self.build_rule_violation(access)
            if storage.start <= self.address < storage.end
            else None
        )

    def to_first_outside(self) -> _GpuViolationReport:
        """Move from a row's first lane, which a report has, to its first lane out of bounds."""
        target = self.span
        if not isinstance(target, TensorSpan) or not target.start <= self.address < target.end:
            return self
        numbers = list(self.numbers)
        numbers[ReportField.ADDRESS] += (target.end - self.address) // self.size * self.size
        return replace(self, numbers=tuple(numbers))

    def build_out_of_bounds(self) -> Violation:
        headline = f"{self.location.kernel} {self.past_verb} {self._describe_position()}"
        return OutOfBounds(headline, self.location, self._list_details())

    def _list_details(self) -> tuple[str, ...]:
        launched = self.launched
        source = (
            launched.inductor_source and f"which TorchInductor made of {launched.inductor_source}"
        )
        more = (line for line in (source, launched.server_phase) if line)
        return (f"launched with {launched}", *more)
