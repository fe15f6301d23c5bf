"""A kernel's graph, indexed by its accesses: their conditions and their address operations.

Everything here is the same for every launch: no ranges, no sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.sanitizer.ir.flow import (
    analyze_addresses,
    find_pointer_origins,
    get_terminator,
    list_branch_targets,
    map_control_flow_sources,
    map_defining_operations,
)
from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    get_bit_count,
)
from harness.sanitizer.ir.intervals import RangeGetter
from harness.sanitizer.ir.operations import (
    ACCESS_OPERATIONS,
    MASK_POSITIONS,
    OVERFLOWING_OPERATIONS,
    VALUE_PRESERVING,
)

Condition = tuple[IRValue, bool]  # a branch or a mask, and whether it is true


class AccessGraph:
    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.address_integers = analyze_addresses(graph)
        self.control_flow_sources = map_control_flow_sources(graph)
        self.pointer_origins = find_pointer_origins(graph)
        self.defining_operations = map_defining_operations(graph)
        self.parameter_indices = {value: index for index, value in enumerate(graph.parameters)}
        self.accesses: list[tuple[IROperation, tuple[Condition, ...]]] = []
        for region in (graph.body, *graph.functions.values()):
            self._collect_accesses(region, ())
        self.block_owners = {
            value: (operation, number, position)
            for operation in graph.walk()
            for number, region in enumerate(operation.regions)
            for block in region.blocks[:1]
            for position, value in enumerate(block.arguments)
        }
        self._cones: dict[IRValue, set[IRValue]] = {}
        self.address_operations = {
            access: self._find_address_operations(access) for access, _ in self.accesses
        }

    def _collect_accesses(self, region: IRRegion, outer: tuple[Condition, ...]) -> None:
        """Collect accesses with the branches that were taken on the way to each."""
        block_conditions = _find_block_conditions(region)
        for block in region.blocks:
            conditions = outer + block_conditions.get(block.label, ())
            for operation in block.operations:
                if operation.name in ACCESS_OPERATIONS:
                    self.accesses.append((operation, conditions))
                for number, inner in enumerate(operation.regions):
                    taken: tuple[Condition, ...] = ()
                    if operation.name == "scf.if":
                        taken = ((operation.operands[0], number == 0),)
                    elif operation.name == "scf.while" and number == 1:
                        taken = ((get_terminator(operation.regions[0]).operands[0], True),)
                    self._collect_accesses(inner, conditions + taken)

    def _find_address_operations(self, access: IROperation) -> list[IROperation]:
        """Find the operations that may overflow on the way into an access."""

        def list_operands(definition: IROperation) -> list[IRValue]:
            if definition.name == "arith.cmpi":
                return []
            operands = (
                definition.operands[1:]
                if definition.name == "arith.select"
                else definition.operands
            )
            return [value for value in operands if value in self.address_integers.signed]

        values = iterate_address_values(
            access.operands[0], self.defining_operations, self.control_flow_sources, list_operands
        )
        overflowing = (
            definition
            for value, definition in values
            if definition.name in OVERFLOWING_OPERATIONS and value in self.address_integers
        )
        return list(dict.fromkeys(overflowing))

    def find_cone(self, value: IRValue) -> set[IRValue]:
        """Find everything that a value is computed from: its backward slice."""
        if value not in self._cones:
            cone: set[IRValue] = set()
            pending = [value]
            while pending:
                current = pending.pop()
                if current in cone:
                    continue
                cone.add(current)
                definition = self.defining_operations.get(current)
                if definition is not None:
                    pending += definition.operands
                    for region in definition.regions:
                        if region.blocks:
                            pending += get_terminator(region).operands
            self._cones[value] = cone
        return self._cones[value]

    def find_root(self, value: IRValue) -> IRValue:
        """Find the value that this one repeats in another shape or type."""
        definition = self.defining_operations.get(value)
        while definition is not None and definition.name in VALUE_PRESERVING:
            value = definition.operands[0]
            definition = self.defining_operations.get(value)
        return value

    def is_zero_extension(self, value: IRValue, get_range: RangeGetter) -> bool:
        """Return whether a value lost the sign of a root that may be negative."""
        root = self.find_root(value)
        return root is not value and get_range(root).low < 0 <= get_range(value).low

    def list_pointer_offsets(self, pointer: IRValue) -> tuple[IRValue, list[tuple[IRValue, int]]]:
        """List the offsets on the way to an address, each with the bytes of its elements.

        Example: `x + row * stride + lane` of int32 gives `x`, `[(lane, 4), (row * stride, 4)]`.
        """
        offsets: list[tuple[IRValue, int]] = []
        while True:
            pointer = self.find_root(pointer)
            definition = self.defining_operations.get(pointer)
            if definition is None or definition.name != "tt.addptr":
                return pointer, offsets
            offsets.append((definition.operands[1], get_element_bytes(pointer)))
            pointer = definition.operands[0]


def get_element_bytes(pointer: IRValue) -> int:
    return max(1, get_bit_count(pointer.type.pointee) // 8)


def iterate_address_values(
    address: IRValue,
    defining_operations: Mapping[IRValue, IROperation],
    sources: Mapping[IRValue, Iterable[IRValue]],
    list_operands: Callable[[IROperation], Iterable[IRValue]],
) -> Iterator[tuple[IRValue, IROperation]]:
    """Iterate the values that an address is computed from, back to loads, with their operations."""
    visited: set[IRValue] = set()
    pending = [address]
    while pending:
        value = pending.pop()
        if value in visited:
            continue
        visited.add(value)
        pending += sources.get(value, ())
        definition = defining_operations.get(value)
        if definition is not None and definition.name not in ACCESS_OPERATIONS:
            yield value, definition
            pending += list_operands(definition)


def _find_block_conditions(region: IRRegion) -> dict[str, tuple[Condition, ...]]:
    """Find the conditions that early returns leave true in the blocks behind them.

    A block with a single way in has the conditions of the block before it and of that branch.
    """
    if len(region.blocks) < 2:
        return {}
    entries: dict[str, list[tuple[IRBlock, Condition | None]]] = {}
    for block in region.blocks:
        last = block.operations[-1]
        for number, (label, _) in enumerate(list_branch_targets(last)):
            taken = (last.operands[0], number == 0) if last.name == "cf.cond_br" else None
            entries.setdefault(label, []).append((block, taken))
    conditions: dict[str, tuple[Condition, ...]] = {}
    for block in region.blocks:
        if len(entries.get(block.label, ())) == 1:
            [(before, taken)] = entries[block.label]
            conditions[block.label] = conditions.get(before.label, ()) + ((taken,) if taken else ())
    return conditions


def find_mask(access: IROperation) -> IRValue | None:
    position = MASK_POSITIONS.get(access.name, len(access.operands))
    return next(iter(access.operands[position : position + 1]), None)
