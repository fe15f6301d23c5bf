"""Data flow in a graph: which parameter a pointer comes from, which integers form addresses.

Example: for `tl.store(target + row * stride, 1)`, `find_pointer_origins` finds parameter 0 for the
store's pointer, and `analyze_addresses` the product, a signed integer that may overflow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from harness.sanitizer.ir.graph import IROperation, IRRegion, IRValue, KernelGraph, ValueType
from harness.sanitizer.ir.operations import (
    ACCESS_OPERATIONS,
    FOLD_OPERATIONS,
    INTEGER_ARITHMETIC,
    OVERFLOWING_OPERATIONS,
    POINTER_MERGING,
    POINTER_PRESERVING,
    SIGNED_OPERATIONS,
    UNSIGNED_OPERATIONS,
)

_CACHE_MODIFIER_CV = 7  # Triton's number of `cache_modifier=".cv"`


def get_terminator(region: IRRegion) -> IROperation:
    return region.block.operations[-1]


def is_integer_sum(operation: IROperation) -> bool:
    """Return whether a reduction or a scan only adds up integers of fewer than 64 bits."""
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
    return {result: operation for operation in graph.walk() for result in operation.results}


def map_control_flow_sources(graph: KernelGraph) -> dict[IRValue, list[IRValue]]:
    """Return the values that each block argument and each result of control flow may come from."""
    sources: dict[IRValue, list[IRValue]] = defaultdict(list)
    mapped: list[IRRegion] = []

    def add_sources(targets: tuple[IRValue, ...], *sources_of_targets: tuple[IRValue, ...]) -> None:
        for values in sources_of_targets:
            for target, value in zip(targets, values, strict=True):
                sources[target].append(value)

    for operation in graph.walk():
        if operation.name == "scf.for":
            [body] = operation.regions
            inits, yields = operation.operands[3:], get_terminator(body).operands
            add_sources(body.block.arguments[1:], inits, yields)
            add_sources(operation.results, inits, yields)
        elif operation.name == "scf.if":
            for region in operation.regions:
                if region.blocks:
                    add_sources(operation.results, get_terminator(region).operands)
        elif operation.name == "scf.while":
            before, after = operation.regions
            condition = get_terminator(before).operands[1:]
            add_sources(before.block.arguments, operation.operands, get_terminator(after).operands)
            add_sources(after.block.arguments, condition)
            add_sources(operation.results, condition)
        elif operation.name in FOLD_OPERATIONS:
            [body] = operation.regions
            add_sources(operation.results, get_terminator(body).operands)
            both = operation.operands * 2
            add_sources(body.block.arguments, both)
        elif operation.name == "tt.map_elementwise":
            [body] = operation.regions
            mapped.append(body)
            pack = operation.get_int("pack", 1)
            arguments = (operand for operand in operation.operands for _ in range(pack))
            add_sources(body.blocks[0].arguments, tuple(arguments))
            results = tuple(result for result in operation.results for _ in range(pack))
            for block in body.blocks:
                if block.operations[-1].name == "tt.map_elementwise.return":
                    add_sources(results, block.operations[-1].operands)
    for region in (graph.body, *graph.functions.values(), *mapped):
        blocks = {block.label: block for block in region.blocks}
        for block in region.blocks:
            last = block.operations[-1]
            for label, values in list_branch_targets(last):
                add_sources(blocks[label].arguments, values)
    return sources


def list_branch_targets(operation: IROperation) -> list[tuple[str, tuple[IRValue, ...]]]:
    """List the blocks that a branch may go to, each with the values of its arguments."""
    if operation.name == "cf.br":
        return [(operation.successors[0], operation.operands)]
    if operation.name == "cf.cond_br":
        _, true, false = operation.split_operands()
        return list(zip(operation.successors, (true, false), strict=True))
    return []


def has_program_synchronization(graph: KernelGraph) -> bool:
    """Return whether programs may synchronize, so that accesses of two programs may have an order.

    They may if one uses the result of an atomic or rereads memory (volatile, or past the caches):
    a lock, a ticket or a flag. Impure assembly may do anything. A loop over any other load waits
    for no other program, for Triton may load once.
    """
    return uses_atomic_results(graph) or has_unseen_synchronization(graph)


def uses_atomic_results(graph: KernelGraph) -> bool:
    used = {value for operation in graph.walk() for value in operation.operands}
    return any(
        operation.name.startswith("tt.atomic") and not used.isdisjoint(operation.results)
        for operation in graph.walk()
    )


def has_unseen_synchronization(graph: KernelGraph) -> bool:
    """Return whether programs may synchronize by something else than atomics."""
    return any(
        operation.attributes.get("pure") == "false"
        or (operation.name == "tt.load" and _rereads_memory(operation))
        for operation in graph.walk()
    )


def _rereads_memory(load: IROperation) -> bool:
    return load.get_flag("isVolatile") or load.get_int("cache") == _CACHE_MODIFIER_CV


def find_pointer_origins(graph: KernelGraph) -> dict[IRValue, int | None]:
    """Find the parameter that each pointer comes from; None if that is unknown or several."""
    sources: dict[IRValue, list[IRValue]] = {**map_control_flow_sources(graph)}
    origins: dict[IRValue, int | None] = {}
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
                origins[result] = None
    for place, parameter in enumerate(graph.parameters):
        origins[parameter] = place if parameter.type.is_pointer else None
    changed = True
    while changed:
        changed = False
        for value, values in sources.items():
            source_origins = {origins[source] for source in values if source in origins}
            if source_origins:
                origin = next(iter(source_origins)) if len(source_origins) == 1 else None
                # None is final, so the search ends.
                if value not in origins or origins[value] not in (None, origin):
                    origins[value] = origin
                    changed = True
    return origins


@dataclass(frozen=True, slots=True)
class AddressIntegers:
    """The integers that form addresses: whether each is signed, and which may have overflowed."""

    signed: dict[IRValue, bool]
    may_overflow: frozenset[IRValue]

    def __contains__(self, value: IRValue) -> bool:
        return value in self.may_overflow


def analyze_addresses(
    graph: KernelGraph, extra_pointers: Iterable[IRValue] = ()
) -> AddressIntegers:
    """Find address integers from the pointers of all accesses, and from `extra_pointers`."""
    sources, definitions = map_control_flow_sources(graph), map_defining_operations(graph)
    signs = _collect_signedness(graph, sources, definitions, extra_pointers)
    signed = {value: True in value_signs for value, value_signs in signs.items()}
    return AddressIntegers(signed, _find_overflow_candidates(signed, sources, definitions))


def _collect_signedness(
    graph: KernelGraph,
    sources: dict[IRValue, list[IRValue]],
    definitions: dict[IRValue, IROperation],
    extra_pointers: Iterable[IRValue],
) -> dict[IRValue, set[bool]]:
    """Collect, backwards from every pointer, how each integer is read: signed, unsigned or both."""
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
        definition = definitions.get(value)
        if definition is None or definition.name not in INTEGER_ARITHMETIC:
            continue
        operand_sign = (
            True
            if definition.name in SIGNED_OPERATIONS
            else False
            if definition.name in UNSIGNED_OPERATIONS
            else sign
        )
        operands = definition.operands
        if definition.name == "arith.select":
            operands = operands[1:]
        elif definition.name == "tt.gather":
            operands = operands[:1]
        waiting += [
            (operand, operand_sign)
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
    """Find, forwards, the integers that may have overflowed or depend on one that may have."""
    candidates: set[IRValue] = set()
    changed = True
    while changed:
        changed = False
        for value in signed:
            if value in candidates:
                continue
            definition = definitions.get(value)
            inputs = list(sources.get(value, ()))
            may_overflow_itself = False
            if definition is not None and definition.name in INTEGER_ARITHMETIC:
                inputs += [operand for operand in definition.operands if operand in signed]
                may_overflow_itself = definition.name in OVERFLOWING_OPERATIONS or (
                    definition.name in FOLD_OPERATIONS and value.type.is_integer
                )
            if may_overflow_itself or any(source in candidates for source in inputs):
                candidates.add(value)
                changed = True
    return frozenset(candidates)
