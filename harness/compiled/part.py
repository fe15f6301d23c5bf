"""A few programs of a grid, launched as a grid of their own: each is told its place in the whole
one, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.compiled.building import Builder
from harness.kernels.graph import Graph, Operation, Region, Value

_ASKED = ("tt.get_program_id", "tt.get_num_programs")


@dataclass(frozen=True, slots=True)
class Part:
    first: tuple[int, ...]  # the program that stands where a grid's first does
    sides: tuple[int, ...]  # of the whole grid

    @property
    def numbers(self) -> tuple[int, ...]:
        return (*self.first, *self.sides)


def placed(graph: Graph, code: Builder, heads: Sequence[Value]) -> Graph:
    """The graph with what it asks about its program answered by the parameters of `PLACES`."""
    first, sides = heads[:3], heads[3:]

    def answered(operation: Operation) -> list[Operation]:
        if operation.name not in _ASKED:
            inner = tuple(map(within, operation.regions))
            return [replace(operation, regions=inner) if inner else operation]
        code.source = operation.source
        axis = operation.number("axis")
        with code.at([]) as made:
            if operation.name == "tt.get_program_id":
                here = code.again(operation, (), operation.result.kind)
                code.binary("addi", here, code.narrowed(first[axis], "i32"))
            else:
                code.narrowed(sides[axis], "i32")
        return [*made[:-1], replace(made[-1], results=operation.results)]

    def within(region: Region) -> Region:
        blocks = (
            replace(
                block, operations=tuple(new for one in block.operations for new in answered(one))
            )
            for block in region.blocks
        )
        return Region(tuple(blocks))

    return replace(graph, body=within(graph.body))
