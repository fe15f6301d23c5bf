"""Where values come from: pointers from arguments, numbers on their way into addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from harness.kernels.graph import Graph, Kind, Operation, Region, Value

# Operations whose result points where their first operand does.
_MOVING = frozenset(
    f"tt.{name}"
    for name in "addptr splat broadcast expand_dims reshape trans bitcast split gather".split()
)
_JOINING = frozenset({"arith.select", "tt.join", "tt.cat"})

# Operations through which a number goes on to be part of an address.
_ARITHMETIC = frozenset(
    [f"arith.{name}" for name in "addi subi muli shli andi ori xori".split()]
    + [f"arith.{name}" for name in "minsi maxsi minui maxui select".split()]
    + [f"arith.{name}" for name in "divsi remsi shrsi divui extsi extui trunci".split()]
    + [f"tt.{name}" for name in "splat broadcast expand_dims reshape trans join cat split".split()]
    + ["tt.gather", "tt.reduce", "tt.scan", "math.absi", "tt.bitcast", "arith.index_cast"]
    + ["tt.unsplat", "tt.addptr", "tt.ptr_to_int", "tt.int_to_ptr"]
)
_SIGNED = frozenset(f"arith.{name}" for name in "divsi remsi shrsi extsi minsi maxsi".split())
_UNSIGNED = frozenset(f"arith.{name}" for name in "divui extui minui maxui".split())
_PAST_CACHES = 7  # how Triton writes `cache_modifier=".cv"`
# Operations whose true result may not fit.
OVERFLOWING = frozenset({"arith.addi", "arith.subi", "arith.muli", "arith.shli", "arith.trunci"})


def terminator(region: Region) -> Operation:
    return region.block.operations[-1]


def is_sum(operation: Operation) -> bool:
    """Whether a reduction or a scan adds integers of fewer than 64 bits up, and nothing else."""
    [body] = operation.regions
    first, *rest = body.block.operations
    return (
        first.name == "arith.addi"
        and len(rest) == 1
        and terminator(body).operands == first.results
        and set(first.operands) == set(body.block.arguments)
        and operation.operands[0].kind.bits < 64
    )


def makers(graph: Graph) -> dict[Value, Operation]:
    return {result: one for one in graph.operations() for result in one.results}


def carried(graph: Graph) -> dict[Value, list[Value]]:
    """What a value may be, where control flow decides: its sources."""
    sources: dict[Value, list[Value]] = defaultdict(list)

    def joined(targets: tuple[Value, ...], *given: tuple[Value, ...]) -> None:
        for values in given:
            for target, value in zip(targets, values, strict=True):
                sources[target].append(value)

    for operation in graph.operations():
        if operation.name == "scf.for":
            [body] = operation.regions
            inits, yields = operation.operands[3:], terminator(body).operands
            joined(body.block.arguments[1:], inits, yields)
            joined(operation.results, inits, yields)
        elif operation.name == "scf.if":
            for region in operation.regions:
                if region.blocks:
                    joined(operation.results, terminator(region).operands)
        elif operation.name == "scf.while":
            before, after = operation.regions
            condition = terminator(before).operands[1:]
            joined(before.block.arguments, operation.operands, terminator(after).operands)
            joined(after.block.arguments, condition)
            joined(operation.results, condition)
        elif operation.name in ("tt.reduce", "tt.scan"):
            [body] = operation.regions
            joined(operation.results, terminator(body).operands)
            both = operation.operands * 2
            joined(body.block.arguments, both)
        elif operation.name == "tt.map_elementwise":
            joined(operation.results, terminator(operation.regions[0]).operands)
    for region in (graph.body, *graph.functions.values()):
        blocks = {block.label: block for block in region.blocks}
        for block in region.blocks:
            last = block.operations[-1]
            for label, values in successors(last):
                joined(blocks[label].arguments, values)
    return sources


def successors(operation: Operation) -> list[tuple[str, tuple[Value, ...]]]:
    """The blocks a branch may go to, each with what it is given."""
    if operation.name == "cf.br":
        return [(operation.successors[0], operation.operands)]
    if operation.name == "cf.cond_br":
        _, true, false = operation.groups()
        return list(zip(operation.successors, (true, false), strict=True))
    return []


def talk(graph: Graph) -> bool:
    """Whether programs may tell each other something, so that there is an order between them.

    They do where one uses what an atomic gave it, or asks memory itself again: as a lock, a ticket
    or a flag. What assembly does nobody knows. A loop over any other load waits for nobody: Triton
    may load once.
    """
    used = {value for operation in graph.operations() for value in operation.operands}
    return any(
        operation.attributes.get("pure") == "false"
        or (operation.name.startswith("tt.atomic") and not used.isdisjoint(operation.results))
        or (operation.name == "tt.load" and _asks_again(operation))
        for operation in graph.operations()
    )


def _asks_again(load: Operation) -> bool:
    return load.flag("isVolatile") or load.number("cache") == _PAST_CACHES


def origins(graph: Graph) -> dict[Value, int | None]:
    """The parameter that each pointer was made from; None where that is not known, or several."""
    sources: dict[Value, list[Value]] = {**carried(graph)}
    found: dict[Value, int | None] = {}
    for operation in graph.operations():
        for result in operation.results:
            if not result.kind.is_pointer or result in sources:
                continue
            if operation.name in _MOVING:
                sources[result] = [operation.operands[0]]
            elif operation.name in _JOINING:
                start = 1 if operation.name == "arith.select" else 0
                sources[result] = list(operation.operands[start:])
            else:
                found[result] = None
    for place, parameter in enumerate(graph.parameters):
        found[parameter] = place if parameter.kind.is_pointer else None
    changed = True
    while changed:
        changed = False
        for value, given in sources.items():
            known = {found[one] for one in given if one in found}
            if known:
                now = next(iter(known)) if len(known) == 1 else None
                if value not in found or found[value] != now:
                    # Once it is None it stays so: the search goes down only.
                    if value in found and found[value] is None:
                        continue
                    found[value] = now
                    changed = True
    return found


@dataclass(frozen=True, slots=True)
class Addressing:
    """The integers that addresses are made of: with what sign, and which may have wrapped."""

    signed: dict[Value, bool]
    suspects: frozenset[Value]

    def __contains__(self, value: Value) -> bool:
        return value in self.suspects


def addressing(graph: Graph, also: Iterable[Value] = ()) -> Addressing:
    """`also`: pointers that something is asked of, besides those of accesses."""
    sources, made_by = carried(graph), makers(graph)
    signs = _signs(graph, sources, made_by, also)
    signed = {value: True in given for value, given in signs.items()}
    return Addressing(signed, _suspects(signed, sources, made_by))


def _signs(
    graph: Graph,
    sources: dict[Value, list[Value]],
    makers: dict[Value, Operation],
    also: Iterable[Value],
) -> dict[Value, set[bool]]:
    """Backwards from every pointer: as what each number is taken on its way."""
    signs: dict[Value, set[bool]] = defaultdict(set)
    waiting = [(value, True) for value in also]
    for operation in graph.operations():
        if operation.name == "tt.addptr":
            waiting += [(value, True) for value in operation.operands]
        elif operation.name == "tt.int_to_ptr":
            waiting += [(value, False) for value in operation.operands]
        elif operation.name in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas"):
            waiting.append((operation.operands[0], True))
    while waiting:
        value, sign = waiting.pop()
        if sign in signs[value]:
            continue
        signs[value].add(sign)
        waiting += [(source, sign) for source in sources.get(value, ())]
        maker = makers.get(value)
        if maker is None or maker.name not in _ARITHMETIC:
            continue
        below = True if maker.name in _SIGNED else False if maker.name in _UNSIGNED else sign
        operands = maker.operands
        if maker.name == "arith.select":
            operands = operands[1:]
        elif maker.name == "tt.gather":
            operands = operands[:1]
        waiting += [
            (operand, below)
            for operand in operands
            if _is_number(operand.kind) or operand.kind.is_pointer
        ]
    return signs


def _is_number(kind: Kind) -> bool:
    return kind.is_integer and kind.bits > 1


def _suspects(
    signed: dict[Value, bool], sources: dict[Value, list[Value]], makers: dict[Value, Operation]
) -> frozenset[Value]:
    """Forwards: what may hold a wrapped number, or was made of one."""
    found: set[Value] = set()
    changed = True
    while changed:
        changed = False
        for value in signed:
            if value in found:
                continue
            maker = makers.get(value)
            given = list(sources.get(value, ()))
            own = False
            if maker is not None and maker.name in _ARITHMETIC:
                given += [operand for operand in maker.operands if operand in signed]
                own = maker.name in OVERFLOWING or (
                    maker.name in ("tt.reduce", "tt.scan") and value.kind.is_integer
                )
            if own or any(one in found for one in given):
                found.add(value)
                changed = True
    return frozenset(found)
