"""A kernel without its numbers: what addresses, masks and branches need, and zeros for the rest.

Whether an integer wraps on its way into an access does not depend on what is computed with the
values that are stored, so a run that asks for that alone need not compute them: no products of
matrices, no inline assembly, little to compile.
"""

from __future__ import annotations

from dataclasses import replace

from harness.audit.shape import ACCESSES, mask_of
from harness.kernels.flow import carried, terminator
from harness.kernels.graph import Block, Graph, Operation, Region, Value

_KEPT = ACCESSES | {"arith.constant", "tt.assert", "tt.func"}


def skeleton(graph: Graph) -> Graph:
    needed = _needed(graph)
    return replace(
        graph,
        body=_bare(graph.body, needed),
        functions={name: _bare(region, needed) for name, region in graph.functions.items()},
    )


def _needed(graph: Graph) -> set[Value]:
    """Backwards from where a program goes and what it touches."""
    makers = {result: one for one in graph.operations() for result in one.results}
    sources = carried(graph)
    waiting: list[Value] = []
    for operation in graph.operations():
        if operation.name in ACCESSES:
            mask = mask_of(operation)
            waiting += [operation.operands[0], *([mask] if mask is not None else [])]
        elif operation.name == "scf.for":
            waiting += operation.operands[:3]
        elif operation.name in ("scf.if", "scf.condition", "cf.cond_br"):
            waiting.append(operation.operands[0])
        elif operation.name == "tt.assert":
            waiting += operation.operands
    found: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        found.add(value)
        waiting += sources.get(value, ())
        maker = makers.get(value)
        if maker is not None and not maker.name.startswith("scf."):
            waiting += maker.operands
            for region in maker.regions:
                waiting += terminator(region).operands
    return found


def _bare(region: Region, needed: set[Value]) -> Region:
    return replace(
        region,
        blocks=tuple(
            Block(
                block.label,
                block.arguments,
                tuple(one for each in block.operations for one in _zeros(each, needed)),
            )
            for block in region.blocks
        ),
    )


def _zeros(operation: Operation, needed: set[Value]) -> list[Operation]:
    kept = operation.name in _KEPT or operation.name.startswith("scf.")
    pointers = any(one.kind.is_pointer for one in operation.results)
    if operation.results and not kept and not pointers and needed.isdisjoint(operation.results):
        return [_zero(operation, one) for one in operation.results]
    if operation.name in ("tt.reduce", "tt.scan"):
        return [operation]
    return [
        replace(operation, regions=tuple(_bare(region, needed) for region in operation.regions))
    ]


def _zero(operation: Operation, result: Value) -> Operation:
    text = "dense<0> : tensor" if result.kind.shape else "0 : zero"
    return replace(
        operation, name="arith.constant", operands=(), results=(result,), regions=(),
        attributes={"value": text},
    )  # fmt: skip
