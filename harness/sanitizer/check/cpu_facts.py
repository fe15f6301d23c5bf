"""The facts of a violation that a kernel compiled for this CPU reported: its row of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.sanitizer.check.tracked_memory import (
    MemoryTracker,
    ProgramId,
    TensorSpan,
    TrackedStorage,
)
from harness.sanitizer.check.triton_facts import TritonFacts
from harness.sanitizer.cpu.abi import REPORT_SIZE, ReportField
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.violations.kinds import ViolationKind
from harness.sanitizer.violations.named_memory import (
    IN_OWN_STORAGE,
    describe_inside,
    describe_unknown,
)


class CpuFacts(TritonFacts):
    def __init__(
        self,
        launched_kernel: str,
        numbers: Sequence[int],
        sites: Sequence[OperationSite],
        spans: Sequence[TensorSpan | None],
        storage: TrackedStorage | None,
        tracker: MemoryTracker,
        find_program: Callable[[int], ProgramId | None],
    ) -> None:
        """`numbers`: by `ReportField`; `spans`: memory of the parameters.

        `storage`: for a pointer from no parameter. `find_program`: by a program's number.
        """
        x, y, z = (numbers[field] for field in (ReportField.X, ReportField.Y, ReportField.Z))
        site = sites[numbers[ReportField.SITE]]
        super().__init__(launched_kernel, site, (x, y, z))
        self._numbers, self._sites = numbers, sites
        self._tracker, self._find_program = tracker, find_program
        self.kind = ViolationKind(numbers[ReportField.KIND])
        self.address = numbers[ReportField.ADDRESS]
        self.violating_lanes = numbers[ReportField.VIOLATING_LANES]
        self.span = span = None if site.argument is None else spans[site.argument]
        self.storage = storage if span is None else span.storage

        self.in_debug_mode = True
        self.harmless = ""  # why a program may go on as it is

    @property
    def is_warning(self) -> bool:
        return bool(self.harmless or (self.kind is ViolationKind.ASSERTION and self.skipped))

    @property
    def skipped(self) -> str:
        words = "a card skips it: neither debug=True nor TRITON_DEBUG=1 is set for this launch"
        return "" if self.in_debug_mode else words

    @property
    def lanes(self) -> str:
        active = self._numbers[ReportField.ACTIVE_LANES]
        if not self.violating_lanes:
            return ""
        return "a scalar" if active <= 1 else f"{self.violating_lanes} of {active} active lanes"

    @property
    def excluded(self) -> str:
        name = self.memory.name if self.memory is not None else ""
        shape = f" {list(self.span.shape)}" if self.span is not None else ""
        count = self.violating_lanes
        return f"{count} elements of {name}{shape}, which its access rule excludes" * bool(count)

    @property
    def other_program(self) -> ProgramId | None:
        return self._find_program(self._numbers[ReportField.OTHER])

    @property
    def overflow(self) -> tuple[OperationSite, int, int, int]:
        number, left, right, result = self._numbers[ReportField.OVERFLOW : REPORT_SIZE]
        return self._sites[number], left, right, result

    # Where the address lies

    @property
    def place(self) -> str:
        memory = self.memory
        if memory is not None:
            return memory.describe_outside(self.address, self.size)
        freed = self._tracker.find_freed(self.address)
        if freed is not None:
            return f"memory of {freed.name}, which was freed"
        return describe_unknown(self.address)

    @property
    def neighbour(self) -> str:
        address, tracker = self.address, self._tracker
        living = tracker.find_living(address)
        if living is not None:
            is_own = living is self.storage
            return (
                IN_OWN_STORAGE if is_own else describe_inside(living.name, address - living.start)
            )
        freed = tracker.find_freed(address)
        if freed is not None:
            return f"that address was in {freed.name}, which was freed"
        nearest = min(
            tracker.iterate_living(),
            key=lambda storage: max(storage.start - address, address - storage.end),
            default=None,
        )
        if nearest is None:
            return "no tensor is near"
        own = self.memory if nearest is self.storage else None
        name = own.name if own is not None else nearest.name
        if address >= nearest.end:
            return f"nearest tensor: {name}, which ends {address - nearest.end} bytes before"
        return f"nearest tensor: {name}, which starts {nearest.start - address} bytes after"
