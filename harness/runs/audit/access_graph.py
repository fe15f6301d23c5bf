"""A graph as an audit looks at it: accesses, what holds there, what addresses are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.kernels.ir.flow import (
    analyze_addresses,
    find_pointer_origins,
    get_terminator,
    list_branch_targets,
    map_control_flow_sources,
)
from harness.kernels.ir.graph import IRBlock, IROperation, IRRegion, IRValue, KernelGraph
from harness.kernels.ir.operations import (
    ACCESS_OPERATIONS,
    OVERFLOWING_OPERATIONS,
    SHAPE_OPERATIONS,
)

VALUE_PRESERVING = SHAPE_OPERATIONS | {
    "tt.unsplat",
    "tt.bitcast",
    "arith.extsi",
    "arith.extui",
    "arith.index_cast",
}


class AccessGraph:
    """What of a graph is the same for every launch."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.address_integers = analyze_addresses(graph)
        self.control_flow_sources = map_control_flow_sources(graph)
        self.pointer_origins = find_pointer_origins(graph)
        self.defining_operations = {result: one for one in graph.walk() for result in one.results}
        self.parameter_indices = {value: place for place, value in enumerate(graph.parameters)}
        self.accesses: list[tuple[IROperation, tuple[tuple[IRValue, bool], ...]]] = []
        for region in (graph.body, *graph.functions.values()):
            self._walk(region, ())
        self.block_owners = {
            value: (operation, number, place)
            for operation in graph.walk()
            for number, region in enumerate(operation.regions)
            for block in region.blocks[:1]
            for place, value in enumerate(block.arguments)
        }
        self._cones: dict[IRValue, set[IRValue]] = {}
        self.address_operations = {
            access: self._find_address_operations(access) for access, _ in self.accesses
        }

    def _walk(self, region: IRRegion, conditions: tuple[tuple[IRValue, bool], ...]) -> None:
        held = _find_block_conditions(region)
        for block in region.blocks:
            here = conditions + held.get(block.label, ())
            for operation in block.operations:
                if operation.name in ACCESS_OPERATIONS:
                    self.accesses.append((operation, here))
                for number, inner in enumerate(operation.regions):
                    if operation.name == "scf.if":
                        branch = ((operation.operands[0], number == 0),)
                        self._walk(inner, here + branch)
                    elif operation.name == "scf.while" and number == 1:
                        before = get_terminator(operation.regions[0]).operands[0]
                        self._walk(inner, (*here, (before, True)))
                    else:
                        self._walk(inner, here)

    def _find_address_operations(self, access: IROperation) -> list[IROperation]:
        """The operations that may overflow on the way into an access."""

        def given(maker: IROperation) -> list[IRValue]:
            if maker.name == "arith.cmpi":
                return []
            operands = maker.operands[1:] if maker.name == "arith.select" else maker.operands
            return [one for one in operands if one in self.address_integers.signed]

        made = iterate_address_values(
            access.operands[0], self.defining_operations, self.control_flow_sources, given
        )
        found = (
            maker
            for value, maker in made
            if maker.name in OVERFLOWING_OPERATIONS and value in self.address_integers
        )
        return list(dict.fromkeys(found))

    def find_cone(self, value: IRValue) -> set[IRValue]:
        """Everything that a value is made from."""
        if value not in self._cones:
            found: set[IRValue] = set()
            waiting = [value]
            while waiting:
                one = waiting.pop()
                if one in found:
                    continue
                found.add(one)
                maker = self.defining_operations.get(one)
                if maker is not None:
                    waiting += maker.operands
                    for region in maker.regions:
                        if region.blocks:
                            waiting += get_terminator(region).operands
            self._cones[value] = found
        return self._cones[value]

    def find_root(self, value: IRValue) -> IRValue:
        """The value that this one holds in another shape."""
        maker = self.defining_operations.get(value)
        while maker is not None and maker.name in VALUE_PRESERVING:
            value = maker.operands[0]
            maker = self.defining_operations.get(value)
        return value


def iterate_address_values(
    address: IRValue,
    defining_operations: Mapping[IRValue, IROperation],
    sources: Mapping[IRValue, Iterable[IRValue]],
    operands_of: Callable[[IROperation], Iterable[IRValue]],
) -> Iterator[tuple[IRValue, IROperation]]:
    """What an address is made of, back to memory: values, each with the operation that makes it."""
    seen: set[IRValue] = set()
    waiting = [address]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        waiting += sources.get(value, ())
        maker = defining_operations.get(value)
        if maker is not None and maker.name not in ACCESS_OPERATIONS:
            yield value, maker
            waiting += operands_of(maker)


def _find_block_conditions(region: IRRegion) -> dict[str, tuple[tuple[IRValue, bool], ...]]:
    """What early returns leave true: of a block with one way in, the branch that was taken."""
    if len(region.blocks) < 2:
        return {}
    entries: dict[str, list[tuple[IRBlock, tuple[IRValue, bool] | None]]] = {}
    for block in region.blocks:
        last = block.operations[-1]
        for number, (label, _) in enumerate(list_branch_targets(last)):
            taken = (last.operands[0], number == 0) if last.name == "cf.cond_br" else None
            entries.setdefault(label, []).append((block, taken))
    held: dict[str, tuple[tuple[IRValue, bool], ...]] = {}
    for block in region.blocks:
        ways = entries.get(block.label, [])
        if len(ways) == 1:
            before, taken = ways[0]
            held[block.label] = held.get(before.label, ()) + ((taken,) if taken else ())
    return held


def find_mask(access: IROperation) -> IRValue | None:
    if access.name == "tt.atomic_cas":
        return None
    place = 1 if access.name == "tt.load" else 2
    if len(access.operands) <= place:
        return None
    mask = access.operands[place]
    return mask if mask.type.element == "i1" else None
