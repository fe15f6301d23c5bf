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

from harness.audit.shape import ACCESSES, behind, mask_of
from harness.kernels.flow import carried, makers, terminator
from harness.kernels.graph import Block, Graph, Operation, Region, Value, operations

_ENDS = ("scf.yield", "scf.condition", "cf.br", "cf.cond_br", "tt.return")
_FOLDS = ("tt.reduce", "tt.scan", "tt.map_elementwise")


def skeleton(graph: Graph, lines: Collection[tuple[str, int]] | None) -> Graph:
    """With the accesses that these lines lead to, or with all of them."""
    return _Skeleton(graph, lines).made()


class _Skeleton:
    def __init__(self, graph: Graph, lines: Collection[tuple[str, int]] | None) -> None:
        self._graph, self._lines = graph, lines
        self._makers, self._sources = makers(graph), carried(graph)
        self._around: dict[Operation | Value, Operation] = {}  # what each stands in
        for one in graph.operations():
            for region in one.regions:
                for block in region.blocks:
                    self._around |= dict.fromkeys((*block.operations, *block.arguments), one)
        self._needed: set[Value] = set()
        self._kept: set[Operation] = set()
        self._waiting: list[Value] = []
        for one in graph.operations():
            if one.name in ("tt.assert", "tt.call") or one.name.startswith("cf."):
                self._keep(one)
                self._waiting += one.operands
            elif one.name in ACCESSES and self._leads_to(one):
                self._keep(one)
                mask = mask_of(one)
                self._waiting += [one.operands[0], *([mask] if mask is not None else [])]
        self._settle()
        self._asked = {value for one in self._kept for value in self._operands(one)}
        self._asked |= {value for one in self._kept for value in self._given(one)}

    def _leads_to(self, access: Operation) -> bool:
        """Whether its address is made of what these lines compute, without memory in between."""
        if self._lines is None:
            return True
        made = behind(access.operands[0], self._makers, self._sources, lambda one: one.operands)
        return any((one.source.file, one.source.line) in self._lines for _, one in made)

    def _settle(self) -> None:
        """Backwards from what is kept, until nothing is lacking."""
        while self._waiting:
            value = self._waiting.pop()
            if value in self._needed:
                continue
            self._needed.add(value)
            self._waiting += self._sources.get(value, ())
            maker = self._makers.get(value) or self._around.get(value)
            if maker is None:
                continue
            self._keep(maker)
            if not maker.name.startswith("scf."):
                self._waiting += maker.operands

    def _keep(self, one: Operation | None) -> None:
        """With all that it stands in, and where a program goes there."""
        while one is not None and one not in self._kept:
            self._kept.add(one)
            if one.name == "scf.for":
                self._waiting += one.operands[:3]
            elif one.name == "scf.if":
                self._waiting.append(one.operands[0])
            elif one.name == "scf.while":
                self._waiting.append(terminator(one.regions[0]).operands[0])
            elif one.name in _FOLDS:
                self._kept.update(each for region in one.regions for each in operations(region))
                self._waiting += one.operands
            if one.name.startswith("scf."):  # no constant stands for a pointer
                self._waiting += [value for value in self._given(one) if value.kind.is_pointer]
            one = self._around.get(one)

    def _given(self, one: Operation) -> list[Value]:
        """What control flow hands on."""
        if not one.name.startswith("scf."):
            return []
        ends = [block.operations[-1] for region in one.regions for block in region.blocks]
        return [*one.operands, *(value for end in ends for value in end.operands)]

    def _operands(self, one: Operation) -> tuple[Value, ...]:
        if one.name not in ACCESSES or not self._needed.isdisjoint(one.results):
            return one.operands
        mask = mask_of(one)
        return (one.operands[0], mask) if mask is not None else one.operands[:1]

    # Making it

    def made(self) -> Graph:
        functions = {name: self._bare(region) for name, region in self._graph.functions.items()}
        return replace(self._graph, body=self._bare(self._graph.body), functions=functions)

    def _bare(self, region: Region) -> Region:
        blocks = [replace(block, operations=tuple(self._left_of(block))) for block in region.blocks]
        return replace(region, blocks=tuple(blocks))

    def _left_of(self, block: Block) -> list[Operation]:
        left: list[Operation] = []
        for one in block.operations:
            if one.name in _ENDS:
                left.append(one)
            elif one not in self._kept:
                left += [_zero(one, result) for result in one.results if result in self._asked]
            elif one.name in ACCESSES and self._needed.isdisjoint(one.results):
                left.append(
                    replace(
                        one, name="tt.store", operands=self._operands(one), results=(),
                        attributes={"addressOnly": "true"},
                    )
                )  # fmt: skip
                left += [_zero(one, result) for result in one.results if result in self._asked]
            elif one.name in _FOLDS:
                left.append(one)
            else:
                left.append(replace(one, regions=tuple(map(self._bare, one.regions))))
        return left


def _zero(operation: Operation, result: Value) -> Operation:
    text = "dense<0> : tensor" if result.kind.shape else "0 : zero"
    return replace(
        operation, name="arith.constant", operands=(), results=(result,), regions=(),
        attributes={"value": text},
    )  # fmt: skip
