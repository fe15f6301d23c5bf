"""Where values come from: pointers from arguments, numbers on their way into addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from harness.kernels.ir.graph import IROperation, IRRegion, IRValue, KernelGraph, ValueType
from harness.kernels.ir.operations import (
    ACCESS_OPERATIONS,
    INTEGER_ARITHMETIC,
    OVERFLOWING_OPERATIONS,
    POINTER_MERGING,
    POINTER_PRESERVING,
    SIGNED_OPERATIONS,
    UNSIGNED_OPERATIONS,
)

_CACHE_MODIFIER_CV = 7  # how Triton writes `cache_modifier=".cv"`


def get_terminator(region: IRRegion) -> IROperation:
    return region.block.operations[-1]


def is_integer_sum(operation: IROperation) -> bool:
    """Whether a reduction or a scan adds integers of fewer than 64 bits up, and nothing else."""
    [body] = operation.regions
    first, *rest = body.block.operations
    return (
        first.name == "arith.addi"
        and len(rest) == 1
        and get_terminator(body).operands == first.results
        and set(first.operands) == set(body.block.arguments)
        and operation.operands[0].type.bits < 64
    )


def map_defining_operations(graph: KernelGraph) -> dict[IRValue, IROperation]:
    return {result: one for one in graph.walk() for result in one.results}


def map_control_flow_sources(graph: KernelGraph) -> dict[IRValue, list[IRValue]]:
    """What a value may be, where control flow decides: its sources."""
    sources: dict[IRValue, list[IRValue]] = defaultdict(list)

    def joined(targets: tuple[IRValue, ...], *given: tuple[IRValue, ...]) -> None:
        for values in given:
            for target, value in zip(targets, values, strict=True):
                sources[target].append(value)

    for operation in graph.walk():
        if operation.name == "scf.for":
            [body] = operation.regions
            inits, yields = operation.operands[3:], get_terminator(body).operands
            joined(body.block.arguments[1:], inits, yields)
            joined(operation.results, inits, yields)
        elif operation.name == "scf.if":
            for region in operation.regions:
                if region.blocks:
                    joined(operation.results, get_terminator(region).operands)
        elif operation.name == "scf.while":
            before, after = operation.regions
            condition = get_terminator(before).operands[1:]
            joined(before.block.arguments, operation.operands, get_terminator(after).operands)
            joined(after.block.arguments, condition)
            joined(operation.results, condition)
        elif operation.name in ("tt.reduce", "tt.scan"):
            [body] = operation.regions
            joined(operation.results, get_terminator(body).operands)
            both = operation.operands * 2
            joined(body.block.arguments, both)
        elif operation.name == "tt.map_elementwise":
            joined(operation.results, get_terminator(operation.regions[0]).operands)
    for region in (graph.body, *graph.functions.values()):
        blocks = {block.label: block for block in region.blocks}
        for block in region.blocks:
            last = block.operations[-1]
            for label, values in list_branch_targets(last):
                joined(blocks[label].arguments, values)
    return sources


def list_branch_targets(operation: IROperation) -> list[tuple[str, tuple[IRValue, ...]]]:
    """The blocks a branch may go to, each with what it is given."""
    if operation.name == "cf.br":
        return [(operation.successors[0], operation.operands)]
    if operation.name == "cf.cond_br":
        _, true, false = operation.split_operands()
        return list(zip(operation.successors, (true, false), strict=True))
    return []


def has_program_synchronization(graph: KernelGraph) -> bool:
    """Whether programs may tell each other something, so that there is an order between them.

    They do where one uses what an atomic gave it, or asks memory itself again: as a lock, a ticket
    or a flag. What assembly does nobody knows. A loop over any other load waits for nobody: Triton
    may load once.
    """
    used = {value for operation in graph.walk() for value in operation.operands}
    return any(
        operation.attributes.get("pure") == "false"
        or (operation.name.startswith("tt.atomic") and not used.isdisjoint(operation.results))
        or (operation.name == "tt.load" and _rereads_memory(operation))
        for operation in graph.walk()
    )


def _rereads_memory(load: IROperation) -> bool:
    return load.get_flag("isVolatile") or load.get_int("cache") == _CACHE_MODIFIER_CV


def find_pointer_origins(graph: KernelGraph) -> dict[IRValue, int | None]:
    """The parameter that each pointer was made from; None where that is not known, or several."""
    sources: dict[IRValue, list[IRValue]] = {**map_control_flow_sources(graph)}
    found: dict[IRValue, int | None] = {}
    for operation in graph.walk():
        for result in operation.results:
            if not result.type.is_pointer or result in sources:
                continue
            if operation.name in POINTER_PRESERVING:
                sources[result] = [operation.operands[0]]
            elif operation.name in POINTER_MERGING:
                start = 1 if operation.name == "arith.select" else 0
                sources[result] = list(operation.operands[start:])
            else:
                found[result] = None
    for place, parameter in enumerate(graph.parameters):
        found[parameter] = place if parameter.type.is_pointer else None
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
class AddressIntegers:
    """The integers that addresses are made of: with what sign, and which may have wrapped."""

    signed: dict[IRValue, bool]
    may_overflow: frozenset[IRValue]

    def __contains__(self, value: IRValue) -> bool:
        return value in self.may_overflow


def analyze_addresses(
    graph: KernelGraph, extra_pointers: Iterable[IRValue] = ()
) -> AddressIntegers:
    """`also`: pointers that something is asked of, besides those of accesses."""
    sources, made_by = map_control_flow_sources(graph), map_defining_operations(graph)
    signs = _collect_signedness(graph, sources, made_by, extra_pointers)
    signed = {value: True in given for value, given in signs.items()}
    return AddressIntegers(signed, _find_overflow_candidates(signed, sources, made_by))


def _collect_signedness(
    graph: KernelGraph,
    sources: dict[IRValue, list[IRValue]],
    definitions: dict[IRValue, IROperation],
    extra_pointers: Iterable[IRValue],
) -> dict[IRValue, set[bool]]:
    """Backwards from every pointer: as what each number is taken on its way."""
    signs: dict[IRValue, set[bool]] = defaultdict(set)
    waiting = [(value, True) for value in extra_pointers]
    for operation in graph.walk():
        if operation.name == "tt.addptr":
            waiting += [(value, True) for value in operation.operands]
        elif operation.name == "tt.int_to_ptr":
            waiting += [(value, False) for value in operation.operands]
        elif operation.name in ACCESS_OPERATIONS:
            waiting.append((operation.operands[0], True))
    while waiting:
        value, sign = waiting.pop()
        if sign in signs[value]:
            continue
        signs[value].add(sign)
        waiting += [(source, sign) for source in sources.get(value, ())]
        maker = definitions.get(value)
        if maker is None or maker.name not in INTEGER_ARITHMETIC:
            continue
        below = (
            True
            if maker.name in SIGNED_OPERATIONS
            else False
            if maker.name in UNSIGNED_OPERATIONS
            else sign
        )
        operands = maker.operands
        if maker.name == "arith.select":
            operands = operands[1:]
        elif maker.name == "tt.gather":
            operands = operands[:1]
        waiting += [
            (operand, below)
            for operand in operands
            if _is_arithmetic_integer(operand.type) or operand.type.is_pointer
        ]
    return signs


def _is_arithmetic_integer(value_type: ValueType) -> bool:
    return value_type.is_integer and value_type.bits > 1


def _find_overflow_candidates(
    signed: dict[IRValue, bool],
    sources: dict[IRValue, list[IRValue]],
    definitions: dict[IRValue, IROperation],
) -> frozenset[IRValue]:
    """Forwards: what may hold a wrapped number, or was made of one."""
    found: set[IRValue] = set()
    changed = True
    while changed:
        changed = False
        for value in signed:
            if value in found:
                continue
            maker = definitions.get(value)
            given = list(sources.get(value, ()))
            own = False
            if maker is not None and maker.name in INTEGER_ARITHMETIC:
                given += [operand for operand in maker.operands if operand in signed]
                own = maker.name in OVERFLOWING_OPERATIONS or (
                    maker.name in ("tt.reduce", "tt.scan") and value.type.is_integer
                )
            if own or any(one in found for one in given):
                found.add(value)
                changed = True
    return frozenset(found)
