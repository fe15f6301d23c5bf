"""Checks inside the kernels that a GPU runs: a graph with checks written in, and their reports.

Writing them in: `instrumentation` turns a graph into one with checks. `access_checks` has the words
that checks call (`access_rows`, `access_rules`, `race_entries`, `uninitialized_reads`);
`overflow_tracking` and `pointer_bounds` follow integers and pointers, `control_flow` carries both
through loops and branches; `report_emission` and `report_assembly` write the reports.

Launching: `checked_launches` launches what `compiler_hooks` has Triton compile, `inductor` turns
TorchInductor's launches into Triton's. `process_reports` finds the launch of each report that lies
in a `report_buffer`, and `kernel_summaries` counts launches. `shadow_memory` holds the programs
that accessed an element, in `shadow_entries`; `storage_registry` and `empty_memory` the storages.

This module loads next to nothing: a checked process imports it before its program runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.sanitizer.triton.specialization import Specialization, SymbolicParameter

DEFAULT_CHECKS = ("bounds", "overflow")
ALL_CHECKS = (*DEFAULT_CHECKS, "uninitialized", "races")
RULES_CHECK = "rules"  # each launch passes a table of access rules
LINE_CHECK = "line"  # overflow counts at one source line alone, which each launch passes
SUBGRID_CHECK = "subgrid"  # each launch passes which programs of a larger grid it runs
POISON = 0xFB  # each byte from `torch.empty`: an improbable float; as an index before all tensors
SUBGRID_PARAMETERS = tuple(
    f"{name}{axis}" for name in ("first_program", "grid_side") for axis in range(3)
)


@dataclass(frozen=True, slots=True)
class InstrumentationRequest:
    """The checks to compile a kernel with."""

    pointer_count: int
    checks: tuple[str, ...]
    overlapping_pointers: tuple[tuple[int, int], ...] = ()  # pairs that share memory
    specialization: Specialization | None = None  # for constants that become parameters

    @property
    def leading_parameters(self) -> tuple[str, ...]:
        """The parameters in front of the pointers' extents."""
        rules = ("rules",) if RULES_CHECK in self.checks else ()
        races = ("launch_number_address", "shadow") if "races" in self.checks else ()
        line = (LINE_CHECK,) if LINE_CHECK in self.checks else ()
        subgrid = SUBGRID_PARAMETERS if SUBGRID_CHECK in self.checks else ()
        return ("report", "launch", *rules, *races, *line, *subgrid)

    @property
    def symbolic_parameters(self) -> tuple[SymbolicParameter, ...]:
        """The parameters in place of constants, behind the extents."""
        return self.specialization.symbolic_parameters if self.specialization is not None else ()

    @property
    def leading_parameter_count(self) -> int:
        """The number of parameters in front of those for constants."""
        return len(self.leading_parameters) + self.pointer_count
