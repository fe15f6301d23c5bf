"""Checks inside of the kernels that a GPU runs: a graph with them written in, and what they report.

`rewriting` turns a graph into one with checks, `accesses` puts bounds in front of each access,
`races` and `unwritten` what their names say; `twins` follows wraps, `reaches` what pointers point
into, `fences` what a program may touch, `assertions` what a kernel says itself; `reporting` is the
part that is a GPU's own assembly. `launching` launches what `triton_side` has Triton compile, with
`pointers` as they were given, and so what `inductor` would launch; `arena` knows where reports lie,
`known` what memory there is, `born` what of it was made empty, `shadows` who touched it in a
launch; `part` has a few programs of a grid believe that all of it was launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.kernels.triton.specialization import Specialization, SymbolicParameter

DEFAULT_CHECKS = ("bounds", "wraps")
ALL_CHECKS = (*DEFAULT_CHECKS, "unwritten", "races")
LINE_CHECK = (
    "line"  # with wraps: those of one line alone count, whose number each launch hands over
)
SUBGRID_CHECK = "part"  # of a grid: each launch hands over which programs its own stand for
SUBGRID_PARAMETERS = tuple(f"{what}{axis}" for what in ("first", "side") for axis in range(3))


@dataclass(frozen=True, slots=True)
class InstrumentationRequest:
    """What a kernel is to be compiled with."""

    pointer_count: int  # how many it is given
    checks: tuple[str, ...]
    overlapping_pointers: tuple[
        tuple[int, int], ...
    ] = ()  # pairs of these that reach into the same memory
    specialization: Specialization | None = None  # how some of its constants become parameters

    @property
    def leading_parameters(self) -> tuple[str, ...]:
        """The parameters in front of the pointers' extents."""
        fences = ("fences",) if "fences" in self.checks else ()
        races = ("turn", "shadow") if "races" in self.checks else ()
        line = (LINE_CHECK,) if LINE_CHECK in self.checks else ()
        part = SUBGRID_PARAMETERS if SUBGRID_CHECK in self.checks else ()
        return ("report", "launch", *fences, *races, *line, *part)

    @property
    def symbolic_parameters(self) -> tuple[SymbolicParameter, ...]:
        """The parameters for constants, behind the extents."""
        return self.specialization.symbolic_parameters if self.specialization is not None else ()

    @property
    def leading_parameter_count(self) -> int:
        """How many parameters stand before the first number's."""
        return len(self.leading_parameters) + self.pointer_count
