"""A few programs of a grid, launched as a grid of their own: each is told its place in the whole
one, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.kernels.gpu.graph_builder import GraphBuilder
from harness.kernels.ir.graph import IROperation, IRRegion, IRValue, KernelGraph

_PROGRAM_QUERIES = ("tt.get_program_id", "tt.get_num_programs")


@dataclass(frozen=True, slots=True)
class Subgrid:
    first_program: tuple[int, ...]  # the program that stands where a grid's first does
    grid_shape: tuple[int, ...]  # of the whole grid

    @property
    def launch_values(self) -> tuple[int, ...]:
        return (*self.first_program, *self.grid_shape)


def rewrite_program_ids(
    graph: KernelGraph, code: GraphBuilder, subgrid_values: Sequence[IRValue]
) -> KernelGraph:
    """The graph with what it asks about its program answered by the parameters of `PLACES`."""
    first, sides = subgrid_values[:3], subgrid_values[3:]

    def answered(operation: IROperation) -> list[IROperation]:
        if operation.name not in _PROGRAM_QUERIES:
            inner = tuple(map(within, operation.regions))
            return [replace(operation, regions=inner) if inner else operation]
        code.source = operation.source
        axis = operation.get_int("axis")
        with code.insert_into([]) as made:
            if operation.name == "tt.get_program_id":
                here = code.clone_operation(operation, (), operation.result.type)
                code.binary("addi", here, code.truncate(first[axis], "i32"))
            else:
                code.truncate(sides[axis], "i32")
        return [*made[:-1], replace(made[-1], results=operation.results)]

    def within(region: IRRegion) -> IRRegion:
        blocks = (
            replace(
                block, operations=tuple(new for one in block.operations for new in answered(one))
            )
            for block in region.blocks
        )
        return IRRegion(tuple(blocks))

    return replace(graph, body=within(graph.body))
