"""What checked kernels of a GPU put down, in the words that a CPU's have."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.checking.memory import Memory, Span
from harness.checking.telling import Told
from harness.checking.violations import OutOfBounds, Violation
from harness.compiled import arena, triton_side
from harness.compiled.fences import READ, WRITE
from harness.compiled.known import KNOWN
from harness.compiled.launching import Given, Launched
from harness.kernels.graph import bits_of
from harness.native.lanes import Site
from harness.native.layout import Report


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
    if sites[record.site].argument is None and not number:
        span = _pointed_into(record, spans)
        if span is None:
            return None
        sites[record.site] = replace(sites[record.site], argument=len(spans))
        spans.append(span)
    told = _Told(
        launched.kernel,
        tuple(numbers),
        tuple(sites),
        tuple(spans),
        None,
        memory or Memory(),
        lambda number: (number, 0, 0),
        lambda number: (0, 0, 0, 0),
        launched,
    )
    if record.word & (READ | WRITE):
        return told.crossed("write" if record.word & WRITE else "read")
    if not number:
        return told.first_outside().outside()
    site = triton_side.sites(launched.compiled, "wraps")[number - 1]
    return told.wrapped_at(site, *_combined(site, *record.operands))


def _pointed_into(record: arena.Told, spans: list[Span]) -> Span | None:
    """What a pointer was in that came from no one argument: another one, or what is known."""
    start, size = record.operands
    for span in spans:
        if (span.start, span.end - span.start + 1) == (start, size):
            return span
    found = KNOWN.starting_at(start)
    if found is None or found.size + 1 != size:
        return None
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
        when = (self.launched.when,) if self.launched.when else ()
        return (f"launched with {self.launched}", *when)
