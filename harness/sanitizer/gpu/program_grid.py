"""A program's position in its grid, and launches of a few programs of a grid.

A subgrid of shape (1, 1, 1) at program (7, 0, 0) of the grid (4000, 1, 1) is launched as a grid of
its own: its program reads `tl.program_id(0) == 7` and `tl.num_programs(0) == 4000`, since both are
rewritten to what the launch passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.sanitizer.gpu.graph_builder import GraphBuilder
from harness.sanitizer.gpu.shadow_entries import FLAG_BITS, PROGRAM_BITS
from harness.sanitizer.ir.graph import (
    IROperation,
    IRValue,
    KernelGraph,
    ValueType,
    map_operations,
)
from harness.sanitizer.ir.operations import PROGRAM_QUERIES

_INT64 = ValueType("i64")
_AXIS_BITS = 16  # bits of a grid's second and third side


class ProgramGrid:
    """Values of the kernel, computed once at its entry."""

    def __init__(self, code: GraphBuilder, entry: list[IROperation]) -> None:
        self._code, self._entry = code, entry
        self._program_number: IRValue | None = None
        self._packed_shape: IRValue | None = None

    @property
    def program_number(self) -> IRValue:
        """The program's number, the last side counted first, as `itertools.product` does."""
        code = self._code
        if self._program_number is None:
            with code.insert_into(self._entry):
                number, *others = (
                    self._emit_axis_value("tt.get_program_id", axis) for axis in range(3)
                )
                for axis, program_id in enumerate(others, 1):
                    side = self._emit_axis_value("tt.get_num_programs", axis)
                    number = code.binary("addi", code.binary("muli", number, side), program_id)
            self._program_number = number
        return self._program_number

    @property
    def packed_shape(self) -> IRValue:
        """All three sides in one number."""
        code = self._code
        if self._packed_shape is None:
            with code.insert_into(self._entry):
                packed, *others = (
                    self._emit_axis_value("tt.get_num_programs", axis) for axis in range(3)
                )
                for side in others:
                    packed = code.binary("shli", packed, code.constant(_AXIS_BITS, _INT64))
                    packed = code.binary("ori", packed, side)
            self._packed_shape = packed
        return self._packed_shape

    def _emit_axis_value(self, name: str, axis: int) -> IRValue:
        value = self._code.emit(name, (), ValueType("i32"), axis=f"{axis} : i32")
        return self._code.extend(value, "i64", signed=True)


def find_entrys_program(entry: int, packed_shape: int) -> tuple[int, int, int] | None:
    """Return the program of a shadow's entry, if no other one's number ends in the same bits."""
    mask = (1 << _AXIS_BITS) - 1
    side_y, side_z = packed_shape >> _AXIS_BITS & mask, packed_shape & mask
    count = (packed_shape >> 2 * _AXIS_BITS) * side_y * side_z
    number = entry >> FLAG_BITS & (1 << PROGRAM_BITS) - 1
    if count > 1 << PROGRAM_BITS or number >= count:
        return None
    x, rest = divmod(number, side_y * side_z)
    return x, *divmod(rest, side_z)


@dataclass(frozen=True, slots=True)
class Subgrid:
    first_program: tuple[int, ...]
    grid_shape: tuple[int, ...]  # shape of the whole grid

    @property
    def launch_values(self) -> tuple[int, ...]:
        return (*self.first_program, *self.grid_shape)


def rewrite_program_ids(
    graph: KernelGraph, code: GraphBuilder, subgrid_values: Sequence[IRValue]
) -> KernelGraph:
    """Take the position in the grid from parameters (`Subgrid.launch_values`)."""
    first, sides = subgrid_values[:3], subgrid_values[3:]

    def rewrite_query(operation: IROperation) -> list[IROperation]:
        if operation.name not in PROGRAM_QUERIES:
            return [operation]
        code.source = operation.source
        axis = operation.get_int("axis")
        with code.insert_into([]) as emitted:
            if operation.name == "tt.get_program_id":
                program_id = code.clone_operation(operation, (), operation.result.type)
                code.binary("addi", program_id, code.truncate(first[axis], "i32"))
            else:
                code.truncate(sides[axis], "i32")
        return [*emitted[:-1], replace(emitted[-1], results=operation.results)]

    return replace(graph, body=map_operations(graph.body, rewrite_query))
