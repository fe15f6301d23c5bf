"""The places of a kernel's variables in shared and local memory."""

from __future__ import annotations

from dataclasses import dataclass

from harness.sanitizer.ir.graph import KernelGraph
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.parser import PtxKernel, PtxVariable


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A variable with its place: an offset in shared or local memory."""

    variable: PtxVariable
    offset: int


def place_variables(
    module: PtxText, kernel: PtxKernel, graph: KernelGraph
) -> tuple[tuple[PlacedVariable, ...], dict[str, int]]:
    """Return the variables that a kernel uses, and the sizes of both spaces.

    Dynamic shared memory starts where the other shared variables end.
    """
    used = {
        operation.attributes["symbol"]
        for operation in graph.walk()
        if operation.name == "ptx.symbol"
    }
    variables = {**module.variables, **kernel.variables}
    placed, ends = [], {"shared": 0, "local": 0}
    dynamic = []
    for name in sorted(used):
        variable = variables[name]
        if variable.space in ends and variable.size:
            start = ends[variable.space]
            start += -start % max(variable.alignment, 1)
            placed.append(PlacedVariable(variable, start))
            ends[variable.space] = start + variable.size
        elif variable.space == "shared":
            dynamic.append(variable)
        else:
            placed.append(PlacedVariable(variable, 0))
    alignment = max((variable.alignment for variable in dynamic), default=16)
    sizes = {space: end + -end % 16 for space, end in ends.items()}
    sizes["shared"] += -sizes["shared"] % alignment
    placed += [PlacedVariable(variable, sizes["shared"]) for variable in dynamic]
    return tuple(placed), sizes
