"""The facts of a violation that a Triton kernel with checks reported on a GPU."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from harness.sanitizer.check.tracked_memory import MemoryTracker, ProgramId
from harness.sanitizer.check.triton_facts import TritonFacts
from harness.sanitizer.gpu import compiler_hooks, report_buffer
from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES
from harness.sanitizer.gpu.process_reports import LaunchRecord
from harness.sanitizer.gpu.program_grid import find_entrys_program
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY
from harness.sanitizer.ir.graph import get_bit_count, wrap_integer
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.violations.exceptions import Violation
from harness.sanitizer.violations.kinds import FORBIDDEN, OVERFLOW_MASK, ViolationKind, read_kind
from harness.sanitizer.violations.named_memory import NamedMemory
from harness.sanitizer.violations.sentences import build_violation


def violation_from_record(
    record: report_buffer.DeviceReport, launched: LaunchRecord, tracker: MemoryTracker | None = None
) -> Violation | None:
    """Return a launch's report as a violation; an overflow counts before the access that it led to.

    `tracker` has the access rules. None if the report is about memory that has been freed since.
    """
    if launched.build_violation is not None:
        own: Violation | None = launched.build_violation(record)
        return own
    facts = GpuFacts(record, launched, tracker)
    return build_violation(facts) if facts.is_true else None  # type: ignore[return-value]


class GpuFacts(TritonFacts):
    def __init__(
        self,
        record: report_buffer.DeviceReport,
        launched: LaunchRecord,
        tracker: MemoryTracker | None,
    ) -> None:
        site = compiler_hooks.load_sites(launched.compiled_kernel, "sites")[record.site]
        super().__init__(launched.kernel, site, record.program)
        self._record, self._launched = record, launched
        self.kind = read_kind(record.word)
        self.span = self._find_memory()
        self.storage = None
        if tracker is not None and self.span is not None:
            self.storage = tracker.find_living(self.span.start)
        self.address = record.address
        if self.kind is ViolationKind.OUT_OF_BOUNDS:
            self.address = self._find_first_outside()

    @property
    def is_true(self) -> bool:
        """Whether the memory is known, and it breaks the check; else it has been freed since."""
        if self.kind is ViolationKind.UNINITIALIZED_READ and not self._was_made_empty():
            return False
        if self.kind in FORBIDDEN.values():  # outside of the storage, the bounds are reported
            storage = self.storage
            return storage is not None and storage.start <= self.address < storage.end
        needs_memory = self.kind not in (ViolationKind.ASSERTION, ViolationKind.OVERFLOW)
        return self.span is not None or not needs_memory

    def _was_made_empty(self) -> bool:
        """Return whether `torch.empty` made the memory, so that the poison's pattern counts."""
        if self.site.argument is not None:
            return self._launched.pointers[self.site.argument].made_empty
        storage = STORAGE_REGISTRY.find_containing(self._record.address)
        return storage is not None and EMPTY_STORAGES.contains(storage.start)

    # Memory

    def _find_memory(self) -> NamedMemory | None:
        """Find the memory of the access; a report out of bounds has the start and size of it."""
        memories: Sequence[NamedMemory] = self._launched.pointers
        if self.site.argument is not None:
            return memories[self.site.argument]
        if self.kind in (ViolationKind.ASSERTION, ViolationKind.OVERFLOW):
            return None
        address, (start, size) = self._record.address, self._record.operands
        if self.kind is ViolationKind.OUT_OF_BOUNDS:
            for memory in memories:
                if (memory.start, memory.end - memory.start + 1) == (start, size):
                    return memory
            storage = STORAGE_REGISTRY.find_starting_at(start)
            return storage if storage is not None and storage.size + 1 == size else None
        known = next((memory for memory in memories if memory.contains(address)), None)
        return known or STORAGE_REGISTRY.find_containing(address)

    def _find_first_outside(self) -> int:
        """Move from a row's first lane, which a report has, to its first lane out of bounds."""
        address, memory = self._record.address, self.span
        if memory is None or not memory.contains(address):
            return address
        return address + (memory.end - address) // self.size * self.size

    @property
    def place(self) -> str:
        assert self.span is not None
        return self.span.describe_outside(self.address, self.size)

    # The others

    @property
    def other_program(self) -> ProgramId | None:
        return find_entrys_program(*self._record.operands)

    @property
    def overflow(self) -> tuple[OperationSite, int, int, int]:
        """Recompute the operands and the result, each cut to its type's bits."""
        number = self._record.word & OVERFLOW_MASK
        site = compiler_hooks.load_sites(self._launched.compiled_kernel, "overflows")[number - 1]
        left, right = self._record.operands
        signed, element = site.element[0] != "u", site.element.removeprefix("u")
        bits = get_bit_count(element)
        if site.label in ("narrowed", "sum"):
            left = wrap_integer(left, 64, signed)
            return site, left, 0, wrap_integer(left, bits, signed)
        left = wrap_integer(left, bits, signed)
        right = wrap_integer(right, bits, signed and site.label != "<<")
        return site, left, right, wrap_integer(_OPERATORS[site.label](left, right), bits, signed)

    @property
    def launched(self) -> str:
        return f"launched with {self._launched}"

    @property
    def made_of(self) -> str:
        source = self._launched.inductor_source
        return source and f"which TorchInductor made of {source}"

    @property
    def phase(self) -> str:
        return self._launched.server_phase


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": lambda number, bits: number << min(bits, 64),
}
