"""The slice of a kernel that computes addresses from some lines, without all other computation.

Invariant: the slice reports an integer overflow of these lines exactly where the whole kernel would
if it did not change memory that it loads addresses from. It keeps the accesses whose addresses
depend on the lines, and all that their addresses, masks and branches depend on. Example: of
`acc += tl.dot(tl.load(a + row * stride), b)` and the store of `acc` the slice for the line of `row`
keeps the load of `a`, without its value, and drops the product and the store.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.sanitizer.ir.access_graph import find_mask, iterate_address_values
from harness.sanitizer.ir.flow import (
    get_terminator,
    map_control_flow_sources,
    map_defining_operations,
)
from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    walk_operations,
)
from harness.sanitizer.ir.operations import (
    ACCESS_OPERATIONS,
    OPERATIONS_WITH_FUNCTION,
    TERMINATORS,
)


def slice_graph(
    graph: KernelGraph, lines: Collection[tuple[str, int]] | None, marks_reads: bool = False
) -> KernelGraph:
    """Keep the accesses whose addresses depend on these lines; without lines, all accesses.

    With `marks_reads` a load whose value nothing needs stays a read: of uninitialized memory, too.
    """
    return _GraphSlicer(graph, lines, marks_reads).build()


class _GraphSlicer:
    def __init__(
        self,
        graph: KernelGraph,
        lines: Collection[tuple[str, int]] | None,
        marks_reads: bool,
    ) -> None:
        self._graph, self._lines, self._marks_reads = graph, lines, marks_reads
        self._defining_operations = map_defining_operations(graph)
        self._control_flow_sources = map_control_flow_sources(graph)
        self._enclosing: dict[IROperation | IRValue, IROperation] = {}
        for operation in graph.walk():
            for region in operation.regions:
                for block in region.blocks:
                    self._enclosing |= dict.fromkeys(block.operations, operation)
                    self._enclosing |= dict.fromkeys(block.arguments, operation)
        self._needed_values: set[IRValue] = set()
        self._kept_operations: set[IROperation] = set()
        self._pending_values: list[IRValue] = []
        for operation in graph.walk():
            if operation.name in ("tt.assert", "tt.call") or operation.name.startswith("cf."):
                self._keep(operation)
                self._pending_values += operation.operands
            elif operation.name in ACCESS_OPERATIONS and self._depends_on_lines(operation):
                self._keep(operation)
                self._pending_values += _list_address_and_mask(operation)
        self._keep_needed()
        self._used_values = {
            value
            for operation in self._kept_operations
            for value in (
                *self._list_operands(operation),
                *self._list_forwarded_values(operation),
            )
        }

    def _depends_on_lines(self, access: IROperation) -> bool:
        """Return whether the address depends on these lines, other than through memory."""
        if self._lines is None:
            return True
        address_values = iterate_address_values(
            access.operands[0],
            self._defining_operations,
            self._control_flow_sources,
            lambda operation: operation.operands,
        )
        return any(definition.source.line_key in self._lines for _, definition in address_values)

    def _keep_needed(self) -> None:
        """Keep, backwards from the pending values, all operations that they depend on."""
        while self._pending_values:
            value = self._pending_values.pop()
            if value in self._needed_values:
                continue
            self._needed_values.add(value)
            self._pending_values += self._control_flow_sources.get(value, ())
            definition = self._defining_operations.get(value) or self._enclosing.get(value)
            if definition is None:
                continue
            self._keep(definition)
            if not definition.name.startswith("scf."):
                self._pending_values += definition.operands

    def _keep(self, operation: IROperation | None) -> None:
        """Keep an operation and those that enclose it, with their conditions."""
        while operation is not None and operation not in self._kept_operations:
            self._kept_operations.add(operation)
            if operation.name == "scf.for":
                self._pending_values += operation.operands[:3]
            elif operation.name == "scf.if":
                self._pending_values.append(operation.operands[0])
            elif operation.name == "scf.while":
                self._pending_values.append(get_terminator(operation.regions[0]).operands[0])
            elif operation.name in OPERATIONS_WITH_FUNCTION:
                self._kept_operations.update(
                    inner for region in operation.regions for inner in walk_operations(region)
                )
                self._pending_values += operation.operands
            if operation.name.startswith("scf."):  # no constant can replace a pointer
                self._pending_values += [
                    value
                    for value in self._list_forwarded_values(operation)
                    if value.type.is_pointer
                ]
            operation = self._enclosing.get(operation)

    def _list_forwarded_values(self, operation: IROperation) -> list[IRValue]:
        """List the values that control flow passes into and out of its blocks."""
        if not operation.name.startswith("scf."):
            return []
        ends = [block.operations[-1] for region in operation.regions for block in region.blocks]
        return [*operation.operands, *(value for end in ends for value in end.operands)]

    def _list_operands(self, operation: IROperation) -> tuple[IRValue, ...]:
        if operation.name not in ACCESS_OPERATIONS or not self._needed_values.isdisjoint(
            operation.results
        ):
            return operation.operands
        return _list_address_and_mask(operation)

    def build(self) -> KernelGraph:
        functions = {
            name: self._slice_region(region) for name, region in self._graph.functions.items()
        }
        return replace(self._graph, body=self._slice_region(self._graph.body), functions=functions)

    def _slice_region(self, region: IRRegion) -> IRRegion:
        blocks = [
            replace(block, operations=tuple(self._slice_block(block))) for block in region.blocks
        ]
        return replace(region, blocks=tuple(blocks))

    def _slice_block(self, block: IRBlock) -> list[IROperation]:
        sliced: list[IROperation] = []
        for operation in block.operations:
            if operation.name in TERMINATORS:
                sliced.append(operation)
            elif operation not in self._kept_operations:
                sliced += self._make_zeros(operation)
            elif operation.name in ACCESS_OPERATIONS and self._needed_values.isdisjoint(
                operation.results
            ):
                operands = self._list_operands(operation)
                attributes = {"addressOnly": "true"}
                if self._marks_reads and operation.name == "tt.load":
                    attributes["isRead"] = "true"
                sliced.append(
                    replace(
                        operation, name="tt.store", operands=operands, results=(),
                        attributes=attributes,
                    )
                )  # fmt: skip
                sliced += self._make_zeros(operation)
            elif operation.name in OPERATIONS_WITH_FUNCTION:
                sliced.append(operation)
            else:
                regions = tuple(map(self._slice_region, operation.regions))
                sliced.append(replace(operation, regions=regions))
        return sliced

    def _make_zeros(self, operation: IROperation) -> list[IROperation]:
        """Make a constant for each result of a dropped operation that the slice still uses."""
        used = (result for result in operation.results if result in self._used_values)
        return [_make_zero(operation, result) for result in used]


def _list_address_and_mask(access: IROperation) -> tuple[IRValue, ...]:
    mask = find_mask(access)
    return (access.operands[0], mask) if mask is not None else access.operands[:1]


def _make_zero(operation: IROperation, result: IRValue) -> IROperation:
    text = "dense<0> : tensor" if result.type.shape else "0 : zero"
    return replace(
        operation, name="arith.constant", operands=(), results=(result,), regions=(),
        attributes={"value": text},
    )  # fmt: skip
