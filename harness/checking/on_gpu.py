"""What checked kernels of a GPU put down, in the words that a CPU's have."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from harness.checking.memory import Memory, Program, Span
from harness.checking.telling import Told
from harness.checking.violations import OutOfBounds, Violation
from harness.compiled import arena, assertions, known, races, triton_side
from harness.compiled.born import BORN
from harness.compiled.fences import READ, WRITE
from harness.compiled.grid import unpacked
from harness.compiled.known import KNOWN
from harness.compiled.launching import Launched
from harness.compiled.pointers import Given
from harness.compiled.shadows import FLAGS, PROGRAM_BITS
from harness.compiled.unwritten import UNWRITTEN
from harness.kernels.graph import bits_of
from harness.native.lanes import Site
from harness.native.layout import Fault, Report

_FAULTS = {
    **races.FAULTS,
    UNWRITTEN: Fault.UNWRITTEN,
    assertions.FAILED: Fault.ASSERTION,
}


def violation(
    record: arena.Told, launched: Launched, memory: Memory | None = None
) -> Violation | None:
    """A record of this launch as an error; a wrap before what came of it. `memory` has its fences.

    None where it was told of a table that was out of date: what lies there has been freed since.
    """
    numbers = [0] * len(Report)
    numbers[Report.SITE], numbers[Report.ADDRESS] = record.site, record.address
    numbers[Report.X], numbers[Report.Y], numbers[Report.Z] = record.program
    sites = triton_side.sites(launched.compiled, "sites")
    spans = [_span(given, memory) for given in launched.pointers]
    number = record.word & 0xFFFF
    fault = next((fault for bit, fault in _FAULTS.items() if record.word & bit), None)
    argument = sites[record.site].argument
    if fault is Fault.UNWRITTEN and not _was_empty(record, launched, argument):
        return None
    if argument is None and not number and fault is not Fault.ASSERTION:
        span = _lies_in(record.address, spans) if fault else _pointed_into(record, spans)
        if span is None:
            return None
        sites[record.site] = replace(sites[record.site], argument=len(spans))
        spans.append(span)
    numbers[Report.KIND] = fault or 0
    grid = (0, 0, 0)
    if fault not in (None, Fault.UNWRITTEN, Fault.ASSERTION):
        entry, sides = record.operands
        grid = unpacked(sides)
        numbers[Report.OTHER] = entry >> FLAGS & ((1 << PROGRAM_BITS) - 1)
    told = _Told(
        launched.kernel,
        tuple(numbers),
        tuple(sites),
        tuple(spans),
        None,
        memory or Memory(),
        lambda number: _program(number, grid),
        lambda number: (0, 0, 0, 0),
        launched,
    )
    if fault is not None:
        return told.error()  # type: ignore[return-value]
    if record.word & (READ | WRITE):
        return told.crossed("write" if record.word & WRITE else "read")
    if not number:
        return told.first_outside().outside()
    site = triton_side.sites(launched.compiled, "wraps")[number - 1]
    return told.wrapped_at(site, *_combined(site, *record.operands))


def _was_empty(record: arena.Told, launched: Launched, argument: int | None) -> bool:
    """Whether the memory was made empty, so that its pattern tells something."""
    if argument is not None:
        return launched.pointers[argument].empty
    found = KNOWN.holding(record.address)
    return found is not None and BORN.has(found.start)


def _lies_in(address: int, spans: list[Span]) -> Span | None:
    for span in spans:
        if span.start <= address < span.end:
            return span
    found = KNOWN.holding(address)
    return None if found is None else _known(found)


def _program(number: int, grid: Program) -> Program | None:
    """The number's program, if no other one's number ends in the same bits."""
    if prod(grid) > 1 << PROGRAM_BITS:
        return None
    x, y, z = map(int, np.unravel_index(number, grid))
    return x, y, z


def _pointed_into(record: arena.Told, spans: list[Span]) -> Span | None:
    """What a pointer was in that came from no one argument: another one, or what is known."""
    start, size = record.operands
    for span in spans:
        if (span.start, span.end - span.start + 1) == (start, size):
            return span
    found = KNOWN.starting_at(start)
    return None if found is None or found.size + 1 != size else _known(found)


def _known(found: known.Storage) -> Span:
    storage: Any = None
    return Span(
        found.name, found.start, found.end, found.itemsize, found.shape, found.kind, storage
    )


def _combined(site: Site, left: int, right: int) -> tuple[int, int, int]:
    """What was combined, and what it became: of each as many bits as there were."""
    signed, element = site.element[0] != "u", site.element.removeprefix("u")
    bits = bits_of(element)
    if site.what in ("narrowed", "sum"):
        left, right = _number(left, 64, signed), 0
        return left, right, _number(left, bits, signed)
    left, right = _number(left, bits, signed), _number(right, bits, signed and site.what != "<<")
    return left, right, _number(_COMBINED[site.what](left, right), bits, signed)


_COMBINED: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": lambda number, bits: number << min(bits, 64),
}


def _number(number: int, bits: int, signed: bool) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def _span(given: Given, memory: Memory | None) -> Span:
    end = given.start + given.reach
    # Whose memory it is, nobody asks but for fences.
    storage: Any = memory.living_at(given.start) if memory is not None else None
    return Span(given.name, given.start, end, given.itemsize, given.shape, given.kind, storage)


@dataclass(frozen=True, slots=True)
class _Told(Told):
    launched: Launched

    def crossed(self, kind: str) -> Violation | None:
        """Nothing of what lies outside of the storage: its bounds tell that."""
        storage = self._storage()
        return self.fence(kind) if storage.start <= self.address < storage.end else None

    def first_outside(self) -> _Told:
        """Of a row, which is told with its first lane."""
        target = self.span
        if not isinstance(target, Span) or not target.start <= self.address < target.end:
            return self
        numbers = list(self.numbers)
        numbers[Report.ADDRESS] += (target.end - self.address) // self.size * self.size
        return replace(self, numbers=tuple(numbers))

    def outside(self) -> Violation:
        headline = f"{self.place.kernel} {self.did} {self._where()}"
        return OutOfBounds(headline, self.place, self._besides())

    def _besides(self) -> tuple[str, ...]:
        launched = self.launched
        whence = f"which TorchInductor made of {launched.whence}" if launched.whence else ""
        more = (one for one in (whence, launched.when) if one)
        return (f"launched with {launched}", *more)
