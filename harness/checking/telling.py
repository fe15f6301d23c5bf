"""What compiled code put down in its report, in the words of whoever has to mend the kernel."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checking.memory import Fence, Memory, Program, Span, Storage
from harness.checking.violations import (
    CannotFollow,
    FenceCrossed,
    KernelAssertion,
    OutOfBounds,
    Place,
    Race,
    Unwritten,
    Wrapped,
)
from harness.kernels import Source
from harness.native.formats import size_of
from harness.native.lanes import Site
from harness.native.layout import Fault, Report
from harness.native.wraps import integer_name

_PAST = {"read": "read", "write": "wrote", "update": "updated"}


@dataclass(frozen=True, slots=True)
class Told:
    """One report, with what it speaks of."""

    kernel: str
    numbers: tuple[int, ...]  # a Report's
    sites: tuple[Site, ...]
    spans: tuple[Span | None, ...]  # of the parameters
    storage: Storage | None  # where the region that was checked has no parameter
    memory: Memory
    program_of: Callable[[int], Program | None]  # by its number, if that tells
    wrap_of: Callable[[int], tuple[int, ...]]

    def error(self) -> Exception:
        return _FAULTS[Fault(self.numbers[Report.KIND])](self)

    # What it speaks of

    @property
    def site(self) -> Site:
        return self.sites[self.numbers[Report.SITE]]

    @property
    def program(self) -> Program:
        x, y, z = (self.numbers[place] for place in (Report.X, Report.Y, Report.Z))
        return x, y, z

    @property
    def address(self) -> int:
        return self.numbers[Report.ADDRESS]

    @property
    def size(self) -> int:
        return size_of(self.site.element) if not self.site.element.startswith("ptr<") else 8

    @property
    def span(self) -> Span | None:
        return None if self.site.argument is None else self.spans[self.site.argument]

    @property
    def target(self) -> Span | Storage | None:
        return self.span if self.span is not None else self.storage

    @property
    def place(self) -> Place:
        return place_of(self.kernel, self.site.source, self.program)

    @property
    def did(self) -> str:
        return _PAST[self.site.what]

    # What went wrong

    def outside(self) -> Exception:
        many, lanes = self.numbers[Report.MANY], self.numbers[Report.LANES]
        details = (
            f"{many} of {lanes} lanes that are on" if lanes > 1 else "a scalar",
            self._neighbour(),
        )
        return OutOfBounds(f"{self.place.kernel} {self.did} {self._where()}", self.place, details)

    def _where(self) -> str:
        target, address = self.target, self.address
        freed = self.memory.freed_at(address)
        if target is None:
            if freed is not None:
                return f"memory of {freed.name}, which was freed"
            return f"address {address:#x}, in no tensor that this launch was given"
        if address >= target.start:
            far = f"{address + self.size - target.end} bytes past the end of {target.name}"
        else:
            far = f"{target.start - address} bytes before the start of {target.name}"
        if isinstance(target, Storage):
            return far
        reached = (
            f"its index {target.index_of(address)}, and it is {target.kind} {list(target.shape)}"
        )
        return f"{far} ({reached})"

    def _neighbour(self) -> str:
        address, target = self.address, self.target
        living = self.memory.living_at(address)
        own = target.storage if isinstance(target, Span) else target
        if living is not None and living is own:
            return "still inside the storage that this tensor is a view of"
        if living is not None:
            return f"what lies there: {living.name}, {address - living.start} bytes into it"
        freed = self.memory.freed_at(address)
        if freed is not None:
            return f"what lay there: {freed.name}, freed"
        nearest = min(
            self.memory.living(),
            key=lambda storage: max(storage.start - address, address - storage.end),
            default=None,
        )
        if nearest is None:
            return "no tensor is near"
        return f"nearest tensor: {nearest.name}, {_distance(nearest, address)}"

    def fence(self, kind: str) -> FenceCrossed:
        storage = self._storage()
        offset = self.address - storage.start
        fence = next(one for one in storage.fences if self._crosses(one, kind, storage, offset))
        tensor = fence.tensor
        name = self.span.name if self.span is not None else storage.name
        where = offset // tensor.element_size() - tensor.storage_offset()
        index = _unravelled(where, tuple(tensor.shape), tuple(tensor.stride()))
        many = self.numbers[Report.MANY]
        told = (f"{many} elements of {name} {list(tensor.shape)}, outside the fence",)
        return FenceCrossed(
            f"{self.place.kernel} {self.did} {name}{list(index)}, outside of what program "
            f"{self.program} may {'read' if self.site.what == 'read' else 'write'}",
            self.place,
            (*(told if many else ()), *self._besides()),
        )

    def _crosses(self, fence: Fence, kind: str, storage: Storage, offset: int) -> bool:
        allowed = fence.allowed(kind, self.program, storage)
        end = min(offset + self.size, storage.size) - 1
        return allowed is not None and not (allowed[offset] and allowed[end])

    def unwritten(self) -> Exception:
        if self.span is not None:
            name, index = self.span.name, f"index {self.span.index_of(self.address)}"
        else:
            storage = self._storage()
            name, index = storage.name, f"byte {self.address - storage.start}"
        many, lanes = self.numbers[Report.MANY], self.numbers[Report.LANES]
        told = (f"{many} of {lanes} lanes that are on",) if many else ()
        return Unwritten(
            f"{self.place.kernel} {self.did} {name} where nobody has written ({index})",
            self.place,
            (*told, *self._besides()),
        )

    def race(self, how: str) -> Exception:
        if self.span is not None:
            name, index = self.span.name, self.span.index_of(self.address)
        else:
            storage = self._storage()
            name, index = storage.name, (self.address - storage.start) // self.size
        who = f"two lanes of program {self.program} {how}"
        if "{other}" in how:
            other = self.program_of(self.numbers[Report.OTHER])
            who = how.format(other=other or "another one", program=self.program)
        headline = f"{self.place.kernel}: {who} {name}, index {index}, without an order"
        return Race(headline, self.place, self._besides())

    def wrapped(self) -> Exception:
        number, left, right, result = self.wrap_of(self.numbers[Report.OTHER])
        return self.wrapped_at(self.sites[number], left, right, result)

    def wrapped_at(self, site: Site, left: int, right: int, result: int) -> Wrapped:
        kind = integer_name(site.element)
        if site.what == "narrowed":
            words = f"{left} narrowed to {kind} became {result}"
        elif site.what == "sum":
            words = f"a sum of {left} became {result} in {kind}"
        else:
            words = f"{left} {site.what} {right} became {result}: more than {kind} holds"
        wrapped = place_of(self.kernel, site.source, self.program)
        here = self.place
        details = [
            words,
            f"{self.site.what} through that address at {here.file}:{here.line}  {here.text}",
        ]
        if self.span is not None:
            details.append(f"which is index {self.span.index_of(self.address)} of {self.span.name}")
        headline = f"{wrapped.kernel}: an integer wraps on its way into an address"
        return Wrapped(headline, wrapped, (*details, *self._besides()))

    def _besides(self) -> tuple[str, ...]:
        """What else there is to say of the launch."""
        return ()

    def assertion(self) -> Exception:
        place = self.place
        headline = f"{place.kernel}: its own assertion fails: {self.site.what}"
        return KernelAssertion(headline, place, self._besides())

    def waits(self) -> Exception:
        place = self.place
        return CannotFollow(
            f"{place.kernel}: program {self.program} waits for another one, and programs run one "
            f"after the other here\n  {place}"
        )

    def _storage(self) -> Storage:
        storage = self.span.storage if self.span is not None else self.storage
        assert storage is not None
        return storage


_FAULTS: dict[Fault, Callable[[Told], Exception]] = {
    Fault.OUTSIDE: Told.outside,
    Fault.FENCE_READ: lambda told: told.fence("read"),
    Fault.FENCE_WRITE: lambda told: told.fence("write"),
    Fault.UNWRITTEN: Told.unwritten,
    Fault.LANES: lambda told: told.race("write different values to"),
    Fault.STORES: lambda told: told.race(
        "programs {other} and {program} write different values to"
    ),
    Fault.ATOMIC_BESIDE_STORE: lambda told: told.race(
        "programs {other} and {program} store and update atomically"
    ),
    Fault.READ_AFTER_WRITE: lambda told: told.race(
        "programs {other} and {program}: the first writes and the second reads"
    ),
    Fault.WRITE_AFTER_READ: lambda told: told.race(
        "programs {other} and {program}: the first reads and the second writes"
    ),
    Fault.WRAPPED: Told.wrapped,
    Fault.ASSERTION: Told.assertion,
    Fault.WAITS: Told.waits,
}


# Places


def place_of(kernel: str, source: Source, program: Program) -> Place:
    """A source line as one reads it; in a function that a kernel called, both are named."""
    text = linecache.getline(source.file, source.line).strip()
    short = "/".join(Path(source.file).parts[-3:])
    inner = function_at(source.file, source.line) if source.caller is not None else None
    name = kernel if inner is None or inner == kernel else f"{kernel} (in {inner})"
    return Place(name, short, source.line, text, program)


def function_at(file: str, line: int) -> str | None:
    """The innermost function that a line is in."""
    return next(
        (name for name, start, end in _functions(file) if start <= line <= end),
        None,
    )


@functools.lru_cache(maxsize=64)
def _functions(file: str) -> list[tuple[str, int, int]]:
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


def _distance(storage: Storage, address: int) -> str:
    if address >= storage.end:
        return f"which ends {address - storage.end} bytes before"
    return f"which starts {storage.start - address} bytes after"


def _unravelled(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, ...]:
    """An element's index from its distance to the first one, largest stride first."""
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis]:
            index[axis], offset = divmod(offset, strides[axis])
    return tuple(index)
