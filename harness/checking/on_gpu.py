"""What checked kernels of a GPU put down, in the words that a CPU's have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.checking.memory import Memory, Span
from harness.checking.telling import Told, place_of
from harness.checking.violations import OutOfBounds, Violation, Wrapped
from harness.compiled import arena, triton_side
from harness.compiled.launching import Given, Launched
from harness.compiled.twins import BITS
from harness.native.lanes import Site
from harness.native.layout import Report
from harness.native.wraps import integer_name


def violation(record: arena.Told, launched: Launched) -> Violation:
    """A record of this launch as an error; a wrap before what came of it."""
    numbers = [0] * len(Report)
    numbers[Report.SITE], numbers[Report.ADDRESS] = record.site, record.address
    numbers[Report.X], numbers[Report.Y], numbers[Report.Z] = record.program
    wraps = [
        site
        for number, site in enumerate(triton_side.sites(launched.compiled, "wraps"))
        if record.word >> number % BITS & 1
    ]
    told = _Told(
        launched.kernel,
        tuple(numbers),
        tuple(triton_side.sites(launched.compiled, "sites")),
        tuple(map(_span, launched.pointers)),
        None,
        Memory(),
        lambda number: (number, 0, 0),
        lambda number: (0, 0, 0, 0),
        launched,
    )
    return told.wrapped_at(wraps) if wraps else told.first_outside().outside()


def _span(given: Given) -> Span:
    end = given.start + given.reach
    storage: Any = None  # whose memory it is, nobody asks here
    return Span(given.name, given.start, end, given.itemsize, given.shape, given.kind, storage)


@dataclass(frozen=True, slots=True)
class _Told(Told):
    launched: Launched

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
        return OutOfBounds(headline, self.place, self._launch())

    def wrapped_at(self, sites: list[Site]) -> Violation:
        first, *others = sites
        wrapped = place_of(self.kernel, first.source, self.program)
        here = self.place
        details = [
            f"{first.what} goes beyond {integer_name(first.element)}",
            f"{self.site.what} through that address at {here.file}:{here.line}  {here.text}",
        ]
        if isinstance(self.span, Span):
            details.append(f"the index that it came to: {self.span.index_of(self.address)}")
        details += [f"or at {place_of(self.kernel, one.source, self.program)}" for one in others]
        return Wrapped(
            f"{wrapped.kernel}: an integer wraps on its way into an address",
            wrapped,
            (*details, *self._launch()),
        )

    def _launch(self) -> tuple[str, ...]:
        when = (self.launched.when,) if self.launched.when else ()
        return (f"launched with {self.launched}", *when)
