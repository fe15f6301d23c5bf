"""A kernel without its numbers: what some lines' integers need on their way into addresses.

Whether an integer wraps on its way into an access does not depend on what is computed with the
values that are stored, nor on other accesses: memory that the kernel itself fills is taken as it
was given. So a run that asks for that alone keeps the accesses that these lines lead to, whatever
their addresses, masks and branches are made of, and no more: no products of matrices, no inline
assembly, little to compile, no memory but what is read on the way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.kernels.ir.flow import (
    get_terminator,
    map_control_flow_sources,
    map_defining_operations,
)
from harness.kernels.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    walk_operations,
)
from harness.kernels.ir.operations import ACCESS_OPERATIONS
from harness.runs.audit.access_graph import find_mask, iterate_address_values

_TERMINATORS = ("scf.yield", "scf.condition", "cf.br", "cf.cond_br", "tt.return")
_FOLD_OPERATIONS = ("tt.reduce", "tt.scan", "tt.map_elementwise")


def slice_graph(graph: KernelGraph, lines: Collection[tuple[str, int]] | None) -> KernelGraph:
    """With the accesses that these lines lead to, or with all of them."""
    return _GraphSlicer(graph, lines).build()


class _GraphSlicer:
    def __init__(self, graph: KernelGraph, lines: Collection[tuple[str, int]] | None) -> None:
        self._graph, self._lines = graph, lines
        self._defining_operations, self._control_flow_sources = (
            map_defining_operations(graph),
            map_control_flow_sources(graph),
        )
        self._enclosing: dict[IROperation | IRValue, IROperation] = {}  # what each stands in
        for one in graph.walk():
            for region in one.regions:
                for block in region.blocks:
                    self._enclosing |= dict.fromkeys((*block.operations, *block.arguments), one)
        self._needed_values: set[IRValue] = set()
        self._kept_operations: set[IROperation] = set()
        self._pending_values: list[IRValue] = []
        for one in graph.walk():
            if one.name in ("tt.assert", "tt.call") or one.name.startswith("cf."):
                self._keep(one)
                self._pending_values += one.operands
            elif one.name in ACCESS_OPERATIONS and self._leads_to(one):
                self._keep(one)
                mask = find_mask(one)
                self._pending_values += [one.operands[0], *([mask] if mask is not None else [])]
        self._keep_needed()
        self._used_values = {
            value for one in self._kept_operations for value in self._list_operands(one)
        }
        self._used_values |= {
            value for one in self._kept_operations for value in self._list_forwarded_values(one)
        }

    def _leads_to(self, access: IROperation) -> bool:
        """Whether its address is made of what these lines compute, without memory in between."""
        if self._lines is None:
            return True
        made = iterate_address_values(
            access.operands[0],
            self._defining_operations,
            self._control_flow_sources,
            lambda one: one.operands,
        )
        return any((one.source.file, one.source.line) in self._lines for _, one in made)

    def _keep_needed(self) -> None:
        """Backwards from what is kept, until nothing is lacking."""
        while self._pending_values:
            value = self._pending_values.pop()
            if value in self._needed_values:
                continue
            self._needed_values.add(value)
            self._pending_values += self._control_flow_sources.get(value, ())
            maker = self._defining_operations.get(value) or self._enclosing.get(value)
            if maker is None:
                continue
            self._keep(maker)
            if not maker.name.startswith("scf."):
                self._pending_values += maker.operands

    def _keep(self, operation: IROperation | None) -> None:
        """With all that it stands in, and where a program goes there."""
        while operation is not None and operation not in self._kept_operations:
            self._kept_operations.add(operation)
            if operation.name == "scf.for":
                self._pending_values += operation.operands[:3]
            elif operation.name == "scf.if":
                self._pending_values.append(operation.operands[0])
            elif operation.name == "scf.while":
                self._pending_values.append(get_terminator(operation.regions[0]).operands[0])
            elif operation.name in _FOLD_OPERATIONS:
                self._kept_operations.update(
                    each for region in operation.regions for each in walk_operations(region)
                )
                self._pending_values += operation.operands
            if operation.name.startswith("scf."):  # no constant stands for a pointer
                self._pending_values += [
                    value
                    for value in self._list_forwarded_values(operation)
                    if value.type.is_pointer
                ]
            operation = self._enclosing.get(operation)

    def _list_forwarded_values(self, operation: IROperation) -> list[IRValue]:
        """What control flow hands on."""
        if not operation.name.startswith("scf."):
            return []
        ends = [block.operations[-1] for region in operation.regions for block in region.blocks]
        return [*operation.operands, *(value for end in ends for value in end.operands)]

    def _list_operands(self, operation: IROperation) -> tuple[IRValue, ...]:
        if operation.name not in ACCESS_OPERATIONS or not self._needed_values.isdisjoint(
            operation.results
        ):
            return operation.operands
        mask = find_mask(operation)
        return (operation.operands[0], mask) if mask is not None else operation.operands[:1]

    # Making it

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
        left: list[IROperation] = []
        for one in block.operations:
            if one.name in _TERMINATORS:
                left.append(one)
            elif one not in self._kept_operations:
                left += [
                    _make_zero(one, result) for result in one.results if result in self._used_values
                ]
            elif one.name in ACCESS_OPERATIONS and self._needed_values.isdisjoint(one.results):
                left.append(
                    replace(
                        one, name="tt.store", operands=self._list_operands(one), results=(),
                        attributes={"addressOnly": "true"},
                    )
                )  # fmt: skip
                left += [
                    _make_zero(one, result) for result in one.results if result in self._used_values
                ]
            elif one.name in _FOLD_OPERATIONS:
                left.append(one)
            else:
                left.append(replace(one, regions=tuple(map(self._slice_region, one.regions))))
        return left


def _make_zero(operation: IROperation, result: IRValue) -> IROperation:
    text = "dense<0> : tensor" if result.type.shape else "0 : zero"
    return replace(
        operation, name="arith.constant", operands=(), results=(result,), regions=(),
        attributes={"value": text},
    )  # fmt: skip
