"""Converts a report of compiled code to an exception with the violation and its source line.

A compiled kernel writes some numbers (`cpu.abi.ReportField`): the kind of violation, the operation,
the address, the program. With the launch's tensors they become, for example, "copy read 4 bytes
past the end of source (its index 20, and it is int32 [20])".
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.sanitizer.check.tracked_memory import (
    AccessRule,
    MemoryTracker,
    ProgramId,
    TensorSpan,
    TrackedStorage,
)
from harness.sanitizer.check.violations import (
    AccessRuleViolation,
    DataRace,
    IntegerOverflow,
    KernelAssertion,
    KernelLocation,
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
)
from harness.sanitizer.cpu.abi import REPORT_SIZE, ReportField, ViolationKind
from harness.sanitizer.cpu.number_formats import size_of
from harness.sanitizer.cpu.overflow_tracking import format_integer_type
from harness.sanitizer.cpu.scratch_values import OperationSite
from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.triton import line_tracing

_PAST_TENSE = {"read": "read", "write": "wrote", "update": "updated"}


@dataclass(frozen=True, slots=True)
class ViolationReport:
    """One report, with the launch that it is about."""

    kernel: str
    numbers: tuple[int, ...]  # by ReportField
    sites: tuple[OperationSite, ...]
    spans: tuple[TensorSpan | None, ...]  # memory of the parameters
    storage: TrackedStorage | None  # for a pointer from no parameter
    memory: MemoryTracker
    program_of: Callable[[int], ProgramId | None]  # by its number; None if that is ambiguous

    def build_violation(self) -> Exception:
        return _VIOLATION_BUILDERS[ViolationKind(self.numbers[ReportField.KIND])](self)

    # The access

    @property
    def site(self) -> OperationSite:
        return self.sites[self.numbers[ReportField.SITE]]

    @property
    def program(self) -> ProgramId:
        x, y, z = (self.numbers[place] for place in (ReportField.X, ReportField.Y, ReportField.Z))
        return x, y, z

    @property
    def address(self) -> int:
        return self.numbers[ReportField.ADDRESS]

    @property
    def size(self) -> int:
        return size_of(self.site.element)

    @property
    def span(self) -> TensorSpan | None:
        return None if self.site.argument is None else self.spans[self.site.argument]

    @property
    def target(self) -> TensorSpan | TrackedStorage | None:
        return self.span if self.span is not None else self.storage

    @property
    def location(self) -> KernelLocation:
        return locate_source(self.kernel, self.site.source, self.program)

    @property
    def past_verb(self) -> str:
        return _PAST_TENSE[self.site.label]

    @property
    def lane_count(self) -> str:
        violating = self.numbers[ReportField.VIOLATING_LANES]
        return f"{violating} of {self.numbers[ReportField.ACTIVE_LANES]} active lanes"

    # The violations

    def build_out_of_bounds(self) -> Exception:
        is_scalar = self.numbers[ReportField.ACTIVE_LANES] <= 1
        details = ("a scalar" if is_scalar else self.lane_count, self._describe_neighbour())
        headline = f"{self.location.kernel} {self.past_verb} {self._describe_position()}"
        return OutOfBounds(headline, self.location, details)

    def _describe_position(self) -> str:
        target, address = self.target, self.address
        freed = self.memory.find_freed(address)
        if target is None:
            if freed is not None:
                return f"memory of {freed.name}, which was freed"
            return f"address {address:#x}, in no tensor that this launch was given"
        if address >= target.start:
            position = f"{address + self.size - target.end} bytes past the end of {target.name}"
        else:
            position = f"{target.start - address} bytes before the start of {target.name}"
        if isinstance(target, TrackedStorage):
            return position
        kind = f"{target.dtype} {list(target.shape)}"
        return f"{position} (its index {target.index_of(address)}, and it is {kind})"

    def _describe_neighbour(self) -> str:
        address, target = self.address, self.target
        living = self.memory.find_living(address)
        storage = target.storage if isinstance(target, TensorSpan) else target
        if living is not None and living is storage:
            return "still inside the storage that this tensor is a view of"
        if living is not None:
            return f"that address is in {living.name}, {address - living.start} bytes into it"
        freed = self.memory.find_freed(address)
        if freed is not None:
            return f"that address was in {freed.name}, which was freed"
        nearest = min(
            self.memory.iterate_living(),
            key=lambda storage: max(storage.start - address, address - storage.end),
            default=None,
        )
        if nearest is None:
            return "no tensor is near"
        name = target.name if target is not None and nearest is storage else nearest.name
        return f"nearest tensor: {name}, {_describe_distance(nearest, address)}"

    def build_rule_violation(self, access: str) -> AccessRuleViolation:
        storage = self._get_storage()
        offset = self.address - storage.start
        rules = storage.access_rules
        rule = next(rule for rule in rules if self._breaks_rule(rule, access, storage, offset))
        tensor = rule.tensor
        name = self.span.name if self.span is not None else storage.name
        element = offset // tensor.element_size() - tensor.storage_offset()
        index = _unravel_index(element, tuple(tensor.shape), tuple(tensor.stride()))
        count = self.numbers[ReportField.VIOLATING_LANES]
        elements = (
            f"{count} elements of {name} {list(tensor.shape)}, which its access rule excludes"
        )
        verb = "read" if self.site.label == "read" else "write"
        return AccessRuleViolation(
            f"{self.location.kernel} {self.past_verb} {name}{list(index)}, outside of what program "
            f"{self.program} may {verb}",
            self.location,
            (*((elements,) if count else ()), *self._list_details()),
        )

    def _breaks_rule(
        self, rule: AccessRule, access: str, storage: TrackedStorage, offset: int
    ) -> bool:
        allowed = rule.get_allowed_bytes(access, self.program, storage)
        end = min(offset + self.size, storage.size) - 1
        return allowed is not None and not (allowed[offset] and allowed[end])

    def build_uninitialized(self) -> Exception:
        if self.span is not None:
            name, position = self.span.name, f"index {self.span.index_of(self.address)}"
        else:
            storage = self._get_storage()
            name, position = storage.name, f"byte {self.address - storage.start}"
        lanes = (self.lane_count,) if self.numbers[ReportField.VIOLATING_LANES] else ()
        return UninitializedMemory(
            f"{self.location.kernel} {self.past_verb} uninitialized memory: {name}, {position}",
            self.location,
            (*lanes, *self._list_details()),
        )

    def build_race(self, description: str) -> Exception:
        if self.span is not None:
            name, index = self.span.name, self.span.index_of(self.address)
        else:
            storage = self._get_storage()
            name, index = storage.name, (self.address - storage.start) // self.size
        race = description.replace("{program}", str(self.program))
        if "{other}" in race:
            other = self.program_of(self.numbers[ReportField.OTHER])
            race = race.replace("{other}", str(other or "another one"))
        headline = f"{self.location.kernel}: {race} {name}, index {index}, without an order"
        return DataRace(headline, self.location, self._list_details())

    def build_overflow(self) -> Exception:
        number, left, right, result = self.numbers[ReportField.OVERFLOW : REPORT_SIZE]
        return self.build_overflow_at(self.sites[number], left, right, result)

    def build_overflow_at(
        self, site: OperationSite, left: int, right: int, result: int
    ) -> IntegerOverflow:
        kind = format_integer_type(site.element)
        if site.label == "narrowed":
            arithmetic = f"{left} narrowed to {kind} became {result}"
        elif site.label == "sum":
            arithmetic = f"a sum of {left} became {result} in {kind}"
        else:
            arithmetic = f"{left} {site.label} {right} became {result}: more than {kind} holds"
        location = locate_source(self.kernel, site.source, self.program)
        access = f"{self.location.file}:{self.location.line}  {self.location.text}"
        details = [arithmetic, f"{self.site.label} through that address at {access}"]
        if self.span is not None:
            details.append(f"which is index {self.span.index_of(self.address)} of {self.span.name}")
        headline = f"{location.kernel}: an integer overflows on its way into an address"
        return IntegerOverflow(headline, location, (*details, *self._list_details()))

    def _list_details(self) -> tuple[str, ...]:
        """Return more lines about the launch; a back end may override this."""
        return ()

    def build_assertion(self) -> Exception:
        headline = f"{self.location.kernel}: its own assertion fails: {self.site.label}"
        return KernelAssertion(headline, self.location, self._list_details())

    def build_endless_wait(self) -> Exception:
        return UncheckableKernel(
            f"{self.location.kernel}: program {self.program} waits for another program, and the "
            f"checker runs them one after the other\n  {self.location}"
        )

    def _get_storage(self) -> TrackedStorage:
        storage = self.span.storage if self.span is not None else self.storage
        assert storage is not None
        return storage


_VIOLATION_BUILDERS: dict[ViolationKind, Callable[[ViolationReport], Exception]] = {
    ViolationKind.OUT_OF_BOUNDS: ViolationReport.build_out_of_bounds,
    ViolationKind.FORBIDDEN_READ: lambda report: report.build_rule_violation("read"),
    ViolationKind.FORBIDDEN_WRITE: lambda report: report.build_rule_violation("write"),
    ViolationKind.UNINITIALIZED_READ: ViolationReport.build_uninitialized,
    ViolationKind.LANE_RACE: lambda report: report.build_race(
        "two lanes of program {program} write different values to"
    ),
    ViolationKind.WRITE_WRITE_RACE: lambda report: report.build_race(
        "programs {other} and {program} write different values to"
    ),
    ViolationKind.ATOMIC_STORE_RACE: lambda report: report.build_race(
        "programs {other} and {program} store and update atomically"
    ),
    ViolationKind.READ_AFTER_WRITE: lambda report: report.build_race(
        "programs {other} and {program}: the first writes and the second reads"
    ),
    ViolationKind.WRITE_AFTER_READ: lambda report: report.build_race(
        "programs {other} and {program}: the first reads and the second writes"
    ),
    ViolationKind.OVERFLOW: ViolationReport.build_overflow,
    ViolationKind.ASSERTION: ViolationReport.build_assertion,
    ViolationKind.ENDLESS_WAIT: ViolationReport.build_endless_wait,
}


# Source lines


def locate_source(kernel: str, source: SourceLocation, program: ProgramId) -> KernelLocation:
    """Return the source line with its text; a called function is named with the kernel."""
    text = linecache.getline(source.file, source.line).strip()
    short = "/".join(Path(source.file).parts[-3:])
    inner = find_function(source.file, source.line) if source.caller is not None else None
    name = kernel if inner is None or inner == kernel else f"{kernel} (in {inner})"
    return KernelLocation(name, short, source.line, text, program)


def find_function(file: str, line: int) -> str | None:
    """Find the innermost function that a line is in."""
    text = "".join(linecache.getlines(file))
    around = [
        (function.end_lineno - function.lineno, function.name)
        for function in line_tracing.find_functions(text, frozenset({line}))
        if function.end_lineno is not None and function.lineno <= line <= function.end_lineno
    ]
    return min(around)[1] if around else None


def _describe_distance(storage: TrackedStorage, address: int) -> str:
    if address >= storage.end:
        return f"which ends {address - storage.end} bytes before"
    return f"which starts {storage.start - address} bytes after"


def _unravel_index(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[Any, ...]:
    """Return an element's index from its distance to the first one, largest stride first."""
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis]:
            index[axis], offset = divmod(offset, strides[axis])
    return tuple(index)
