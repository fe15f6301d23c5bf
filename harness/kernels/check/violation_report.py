"""What compiled code put down in its report, in the words of whoever has to mend the kernel."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.kernels.check.tracked_memory import (
    AccessRule,
    MemoryTracker,
    ProgramId,
    TensorSpan,
    TrackedStorage,
)
from harness.kernels.check.violations import (
    AccessRuleViolation,
    DataRace,
    IntegerOverflow,
    KernelAssertion,
    KernelLocation,
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
)
from harness.kernels.cpu.abi import ReportField, ViolationKind
from harness.kernels.cpu.number_formats import size_of
from harness.kernels.cpu.overflow_tracking import format_integer_type
from harness.kernels.cpu.scratch_values import OperationSite
from harness.kernels.ir.graph import SourceLocation

_PAST_TENSE = {"read": "read", "write": "wrote", "update": "updated"}


@dataclass(frozen=True, slots=True)
class ViolationReport:
    """One report, with what it speaks of."""

    kernel: str
    numbers: tuple[int, ...]  # a Report's
    sites: tuple[OperationSite, ...]
    spans: tuple[TensorSpan | None, ...]  # of the parameters
    storage: TrackedStorage | None  # where the region that was checked has no parameter
    memory: MemoryTracker
    program_of: Callable[[int], ProgramId | None]  # by its number, if that tells
    overflow_of: Callable[[int], tuple[int, ...]]

    def build_violation(self) -> Exception:
        return _VIOLATION_BUILDERS[ViolationKind(self.numbers[ReportField.KIND])](self)

    # What it speaks of

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
        return size_of(self.site.element) if not self.site.element.startswith("ptr<") else 8

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

    # What went wrong

    def build_out_of_bounds(self) -> Exception:
        many, lanes = (
            self.numbers[ReportField.VIOLATING_LANES],
            self.numbers[ReportField.ACTIVE_LANES],
        )
        details = (
            f"{many} of {lanes} lanes that are on" if lanes > 1 else "a scalar",
            self._describe_neighbour(),
        )
        return OutOfBounds(
            f"{self.location.kernel} {self.past_verb} {self._describe_position()}",
            self.location,
            details,
        )

    def _describe_position(self) -> str:
        target, address = self.target, self.address
        freed = self.memory.find_freed(address)
        if target is None:
            if freed is not None:
                return f"memory of {freed.name}, which was freed"
            return f"address {address:#x}, in no tensor that this launch was given"
        if address >= target.start:
            far = f"{address + self.size - target.end} bytes past the end of {target.name}"
        else:
            far = f"{target.start - address} bytes before the start of {target.name}"
        if isinstance(target, TrackedStorage):
            return far
        reached = (
            f"its index {target.index_of(address)}, and it is {target.dtype} {list(target.shape)}"
        )
        return f"{far} ({reached})"

    def _describe_neighbour(self) -> str:
        address, target = self.address, self.target
        living = self.memory.find_living(address)
        own = target.storage if isinstance(target, TensorSpan) else target
        if living is not None and living is own:
            return "still inside the storage that this tensor is a view of"
        if living is not None:
            return f"what lies there: {living.name}, {address - living.start} bytes into it"
        freed = self.memory.find_freed(address)
        if freed is not None:
            return f"what lay there: {freed.name}, freed"
        nearest = min(
            self.memory.iterate_living(),
            key=lambda storage: max(storage.start - address, address - storage.end),
            default=None,
        )
        if nearest is None:
            return "no tensor is near"
        return f"nearest tensor: {nearest.name}, {_describe_distance(nearest, address)}"

    def build_rule_violation(self, access: str) -> AccessRuleViolation:
        storage = self._get_storage()
        offset = self.address - storage.start
        fence = next(
            one for one in storage.access_rules if self._breaks_rule(one, access, storage, offset)
        )
        tensor = fence.tensor
        name = self.span.name if self.span is not None else storage.name
        where = offset // tensor.element_size() - tensor.storage_offset()
        index = _unravel_index(where, tuple(tensor.shape), tuple(tensor.stride()))
        many = self.numbers[ReportField.VIOLATING_LANES]
        told = (f"{many} elements of {name} {list(tensor.shape)}, outside the fence",)
        return AccessRuleViolation(
            f"{self.location.kernel} {self.past_verb} {name}{list(index)}, outside of what program "
            f"{self.program} may {'read' if self.site.label == 'read' else 'write'}",
            self.location,
            (*(told if many else ()), *self._list_details()),
        )

    def _breaks_rule(
        self, rule: AccessRule, access: str, storage: TrackedStorage, offset: int
    ) -> bool:
        allowed = rule.get_allowed_bytes(access, self.program, storage)
        end = min(offset + self.size, storage.size) - 1
        return allowed is not None and not (allowed[offset] and allowed[end])

    def build_uninitialized(self) -> Exception:
        if self.span is not None:
            name, index = self.span.name, f"index {self.span.index_of(self.address)}"
        else:
            storage = self._get_storage()
            name, index = storage.name, f"byte {self.address - storage.start}"
        many, lanes = (
            self.numbers[ReportField.VIOLATING_LANES],
            self.numbers[ReportField.ACTIVE_LANES],
        )
        told = (f"{many} of {lanes} lanes that are on",) if many else ()
        return UninitializedMemory(
            f"{self.location.kernel} {self.past_verb} {name} where nobody has written ({index})",
            self.location,
            (*told, *self._list_details()),
        )

    def build_race(self, description: str) -> Exception:
        if self.span is not None:
            name, index = self.span.name, self.span.index_of(self.address)
        else:
            storage = self._get_storage()
            name, index = storage.name, (self.address - storage.start) // self.size
        who = f"two lanes of program {self.program} {description}"
        if "{other}" in description:
            other = self.program_of(self.numbers[ReportField.OTHER])
            who = description.format(other=other or "another one", program=self.program)
        headline = f"{self.location.kernel}: {who} {name}, index {index}, without an order"
        return DataRace(headline, self.location, self._list_details())

    def build_overflow(self) -> Exception:
        number, left, right, result = self.overflow_of(self.numbers[ReportField.OTHER])
        return self.build_overflow_at(self.sites[number], left, right, result)

    def build_overflow_at(
        self, site: OperationSite, left: int, right: int, result: int
    ) -> IntegerOverflow:
        kind = format_integer_type(site.element)
        if site.label == "narrowed":
            words = f"{left} narrowed to {kind} became {result}"
        elif site.label == "sum":
            words = f"a sum of {left} became {result} in {kind}"
        else:
            words = f"{left} {site.label} {right} became {result}: more than {kind} holds"
        wrapped = locate_source(self.kernel, site.source, self.program)
        here = self.location
        details = [
            words,
            f"{self.site.label} through that address at {here.file}:{here.line}  {here.text}",
        ]
        if self.span is not None:
            details.append(f"which is index {self.span.index_of(self.address)} of {self.span.name}")
        headline = f"{wrapped.kernel}: an integer wraps on its way into an address"
        return IntegerOverflow(headline, wrapped, (*details, *self._list_details()))

    def _list_details(self) -> tuple[str, ...]:
        """What else there is to say of the launch."""
        return ()

    def build_assertion(self) -> Exception:
        place = self.location
        headline = f"{place.kernel}: its own assertion fails: {self.site.label}"
        return KernelAssertion(headline, place, self._list_details())

    def build_endless_wait(self) -> Exception:
        place = self.location
        return UncheckableKernel(
            f"{place.kernel}: program {self.program} waits for another one, and programs run one "
            f"after the other here\n  {place}"
        )

    def _get_storage(self) -> TrackedStorage:
        storage = self.span.storage if self.span is not None else self.storage
        assert storage is not None
        return storage


_VIOLATION_BUILDERS: dict[ViolationKind, Callable[[ViolationReport], Exception]] = {
    ViolationKind.OUT_OF_BOUNDS: ViolationReport.build_out_of_bounds,
    ViolationKind.FORBIDDEN_READ: lambda told: told.build_rule_violation("read"),
    ViolationKind.FORBIDDEN_WRITE: lambda told: told.build_rule_violation("write"),
    ViolationKind.UNINITIALIZED_READ: ViolationReport.build_uninitialized,
    ViolationKind.LANE_RACE: lambda told: told.build_race("write different values to"),
    ViolationKind.WRITE_WRITE_RACE: lambda told: told.build_race(
        "programs {other} and {program} write different values to"
    ),
    ViolationKind.ATOMIC_STORE_RACE: lambda told: told.build_race(
        "programs {other} and {program} store and update atomically"
    ),
    ViolationKind.READ_AFTER_WRITE: lambda told: told.build_race(
        "programs {other} and {program}: the first writes and the second reads"
    ),
    ViolationKind.WRITE_AFTER_READ: lambda told: told.build_race(
        "programs {other} and {program}: the first reads and the second writes"
    ),
    ViolationKind.OVERFLOW: ViolationReport.build_overflow,
    ViolationKind.ASSERTION: ViolationReport.build_assertion,
    ViolationKind.ENDLESS_WAIT: ViolationReport.build_endless_wait,
}


# Places


def locate_source(kernel: str, source: SourceLocation, program: ProgramId) -> KernelLocation:
    """A source line as one reads it; in a function that a kernel called, both are named."""
    text = linecache.getline(source.file, source.line).strip()
    short = "/".join(Path(source.file).parts[-3:])
    inner = find_function(source.file, source.line) if source.caller is not None else None
    name = kernel if inner is None or inner == kernel else f"{kernel} (in {inner})"
    return KernelLocation(name, short, source.line, text, program)


def find_function(file: str, line: int) -> str | None:
    """The innermost function that a line is in."""
    return next(
        (name for name, start, end in _list_functions(file) if start <= line <= end),
        None,
    )


@functools.lru_cache(maxsize=64)
def _list_functions(file: str) -> list[tuple[str, int, int]]:
    try:
        tree: Any = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    found = [
        (node.name, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    return sorted(found, key=lambda one: one[2] - one[1])


def _describe_distance(storage: TrackedStorage, address: int) -> str:
    if address >= storage.end:
        return f"which ends {address - storage.end} bytes before"
    return f"which starts {storage.start - address} bytes after"


def _unravel_index(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[Any, ...]:
    """An element's index from its distance to the first one, largest stride first."""
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis]:
            index[axis], offset = divmod(offset, strides[axis])
    return tuple(index)
