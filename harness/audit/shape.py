"""A graph as an audit looks at it: accesses, what holds there, what addresses are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.kernels.flow import OVERFLOWING, addressing, carried, origins, successors, terminator
from harness.kernels.graph import Block, Graph, Operation, Region, Value

ACCESSES = frozenset({"tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas"})
SAME = frozenset(
    f"tt.{name}" for name in "splat broadcast expand_dims reshape trans unsplat bitcast".split()
) | {"arith.extsi", "arith.extui", "arith.index_cast"}


class Shape:
    """What of a graph is the same for every launch."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.addressing = addressing(graph)
        self.carried = carried(graph)
        self.origins = origins(graph)
        self.makers = {result: one for one in graph.operations() for result in one.results}
        self.places = {value: place for place, value in enumerate(graph.parameters)}
        self.accesses: list[tuple[Operation, tuple[tuple[Value, bool], ...]]] = []
        for region in (graph.body, *graph.functions.values()):
            self._walk(region, ())
        self.owners = {
            value: (operation, number, place)
            for operation in graph.operations()
            for number, region in enumerate(operation.regions)
            for block in region.blocks[:1]
            for place, value in enumerate(block.arguments)
        }
        self._cones: dict[Value, set[Value]] = {}
        self.reached = {access: self._reached(access) for access, _ in self.accesses}

    def _walk(self, region: Region, conditions: tuple[tuple[Value, bool], ...]) -> None:
        held = _held_in_blocks(region)
        for block in region.blocks:
            here = conditions + held.get(block.label, ())
            for operation in block.operations:
                if operation.name in ACCESSES:
                    self.accesses.append((operation, here))
                for number, inner in enumerate(operation.regions):
                    if operation.name == "scf.if":
                        branch = ((operation.operands[0], number == 0),)
                        self._walk(inner, here + branch)
                    elif operation.name == "scf.while" and number == 1:
                        before = terminator(operation.regions[0]).operands[0]
                        self._walk(inner, (*here, (before, True)))
                    else:
                        self._walk(inner, here)

    def _reached(self, access: Operation) -> list[Operation]:
        """The operations that may overflow on the way into an access."""

        def given(maker: Operation) -> list[Value]:
            if maker.name == "arith.cmpi":
                return []
            operands = maker.operands[1:] if maker.name == "arith.select" else maker.operands
            return [one for one in operands if one in self.addressing.signed]

        made = behind(access.operands[0], self.makers, self.carried, given)
        found = (
            maker for value, maker in made if maker.name in OVERFLOWING and value in self.addressing
        )
        return list(dict.fromkeys(found))

    def cone(self, value: Value) -> set[Value]:
        """Everything that a value is made from."""
        if value not in self._cones:
            found: set[Value] = set()
            waiting = [value]
            while waiting:
                one = waiting.pop()
                if one in found:
                    continue
                found.add(one)
                maker = self.makers.get(one)
                if maker is not None:
                    waiting += maker.operands
                    for region in maker.regions:
                        if region.blocks:
                            waiting += terminator(region).operands
            self._cones[value] = found
        return self._cones[value]

    def root(self, value: Value) -> Value:
        """The value that this one holds in another shape."""
        maker = self.makers.get(value)
        while maker is not None and maker.name in SAME:
            value = maker.operands[0]
            maker = self.makers.get(value)
        return value


def behind(
    address: Value,
    makers: Mapping[Value, Operation],
    sources: Mapping[Value, Iterable[Value]],
    given: Callable[[Operation], Iterable[Value]],
) -> Iterator[tuple[Value, Operation]]:
    """What an address is made of, back to memory: values, each with the operation that makes it."""
    seen: set[Value] = set()
    waiting = [address]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        waiting += sources.get(value, ())
        maker = makers.get(value)
        if maker is not None and maker.name not in ACCESSES:
            yield value, maker
            waiting += given(maker)


def _held_in_blocks(region: Region) -> dict[str, tuple[tuple[Value, bool], ...]]:
    """What early returns leave true: of a block with one way in, the branch that was taken."""
    if len(region.blocks) < 2:
        return {}
    entries: dict[str, list[tuple[Block, tuple[Value, bool] | None]]] = {}
    for block in region.blocks:
        last = block.operations[-1]
        for number, (label, _) in enumerate(successors(last)):
            taken = (last.operands[0], number == 0) if last.name == "cf.cond_br" else None
            entries.setdefault(label, []).append((block, taken))
    held: dict[str, tuple[tuple[Value, bool], ...]] = {}
    for block in region.blocks:
        ways = entries.get(block.label, [])
        if len(ways) == 1:
            before, taken = ways[0]
            held[block.label] = held.get(before.label, ()) + ((taken,) if taken else ())
    return held


def mask_of(access: Operation) -> Value | None:
    if access.name == "tt.atomic_cas":
        return None
    place = 1 if access.name == "tt.load" else 2
    if len(access.operands) <= place:
        return None
    mask = access.operands[place]
    return mask if mask.kind.element == "i1" else None
